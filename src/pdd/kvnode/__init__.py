"""The KV node: a shared arena of blocks, its server, and its clients."""
