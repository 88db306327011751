"""Trace files: what they say, where they contradict themselves, and the requests that they stand for."""
