"""All of this folder needs vLLM: run it with ``.venv-vllm/bin/pytest tests/vllm``."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
