"""A relayed answer, and what the relay is good for."""
