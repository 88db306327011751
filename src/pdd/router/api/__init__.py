"""The front door: OpenAI-compatible HTTP, text to token IDs and back, tenants."""
