"""Choices: route, filter, hand-off, placement, admission, health, batching, and the costs behind them. Pure."""
