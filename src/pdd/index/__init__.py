"""Which blocks a KV node holds; moves no bytes. Pure."""
