"""A vLLM instance as P, RLD or MD: a KV connector, a logits processor and a middleware, all named on vLLM's command
line.

Nothing here patches vLLM. ``connector`` is what vLLM loads; it only hands on to ``scheduler_side`` (decides what to
load and to save) and ``worker_side`` (moves the bytes), which talk in ``orders``. ``middleware`` needs nothing of vLLM
but what its server hands over, and ``sampling`` draws by ``seeded_rows`` and ``drawing``, which know no vLLM either.
"""
