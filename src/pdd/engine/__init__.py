"""Engines: token IDs in, spans of token IDs out."""
