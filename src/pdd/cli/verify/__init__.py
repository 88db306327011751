"""Proof that relayed answers are the same, token for token."""
