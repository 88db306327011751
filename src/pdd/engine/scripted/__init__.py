"""The deterministic fake: every token depends on all before it, every block's bytes on its name."""
