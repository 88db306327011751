"""The published evaluation, simulated."""
