"""KV nodes in one process: what simulation and tests have in the place of real ones."""
