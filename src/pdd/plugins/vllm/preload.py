# pyright: basic, reportMissingImports=false
# ruff: noqa: F401
"""Imports what a vLLM engine imports until it serves: three processes' worth, most of what its start takes."""

import vllm.entrypoints.launchers.api_server.entry
import vllm.model_executor.models.llama
import vllm.v1.engine.async_llm
import vllm.v1.engine.core
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.gpu_model_runner

import pdd.plugins.vllm.connector
import pdd.plugins.vllm.sampling
