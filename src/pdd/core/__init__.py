"""The nouns every other part speaks in. Pure: no clock, no chance, no input or output."""
