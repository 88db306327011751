"""Any engine over HTTP, by the token-level interface of vLLM: server, client, and what both hold each other to."""
