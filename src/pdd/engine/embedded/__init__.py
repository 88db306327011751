"""A small, exact torch engine for CPUs."""
