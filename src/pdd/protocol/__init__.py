"""Sans-IO state machines: events in, commands out. Pure."""
