"""One event schema and one set of metrics, live and simulated."""
