"""Runs relayed requests: the state machine, engines, nodes and the clock, joined."""
