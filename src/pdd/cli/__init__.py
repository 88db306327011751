"""The composition root: the only place that reads files, flags and the environment."""
