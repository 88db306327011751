"""What bounds every wait: the settings, how long an engine may be silent, and how many requests are served at once."""
