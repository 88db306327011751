"""Between the canonical block and the ways in which vLLM's backends keep KV, behind one small interface (``base``)."""
