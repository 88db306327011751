"""The front door: OpenAI-compatible API and the driver of relayed requests."""
