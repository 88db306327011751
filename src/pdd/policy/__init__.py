"""Choices: route, hand-off, batching, and the costs behind them. Pure."""
