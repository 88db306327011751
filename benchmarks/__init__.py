"""Measurements of PDD against its own yardsticks: ``python -m benchmarks [NAME ...]``."""
