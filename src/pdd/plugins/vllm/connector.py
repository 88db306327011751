# pyright: basic, reportMissingImports=false
"""What vLLM loads: ``--kv-transfer-config '{"kv_connector": "PddConnector", "kv_connector_module_path":
"pdd.plugins.vllm.connector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config":
{...}}'``.

One object in the scheduler's process, one in each worker's. Both only hand on; see ``scheduler_side`` and
``worker_side``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tp_group

from pdd.plugins.vllm.layouts.canonical import RankHeads, WireBlocks
from pdd.plugins.vllm.layouts.choose import choose_layout
from pdd.plugins.vllm.offers import CachedBlock
from pdd.plugins.vllm.orders import StepOrders
from pdd.plugins.vllm.parent_watch import end_with_parent
from pdd.plugins.vllm.scheduler_side import SchedulerSide
from pdd.plugins.vllm.settings import check_supported, read_settings
from pdd.plugins.vllm.worker_side import Ranks, SingleRank, WorkerSide

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_logger = logging.getLogger("vllm.pdd")  # vLLM shows what is logged below its own name


@dataclass
class _Metadata(KVConnectorMetadata):
    orders: StepOrders


class _TensorParallelRanks:
    """vLLM's tensor parallel group."""

    def __init__(self) -> None:
        self._group = get_tp_group()
        self.rank: int = self._group.rank_in_group
        self.size: int = self._group.world_size

    def announce(self, block: CachedBlock | None) -> CachedBlock | None:
        return self._group.broadcast_object(block, src=0)

    def gather(self, content: Tensor) -> Sequence[Tensor]:
        content = content.contiguous()
        parts = [torch.empty_like(content) for _ in range(self.size)] if self.rank == 0 else None
        torch.distributed.gather(content, parts, dst=self._group.ranks[0], group=self._group.cpu_group)
        return parts or ()


class PddConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads from and saves to the engine's local KV node."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """Raises ConfigError: wrong settings, or something in vLLM's that can't be exchanged."""
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = read_settings(vllm_config)
        check_supported(vllm_config, kv_cache_config, self._settings)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            end_with_parent()
            self._link = self._settings.make_link()
            self._link.connect()
            self._scheduler = SchedulerSide(self._settings.kv_format, self._link.count_held)

    @property
    def requires_kv_delivery(self) -> bool:
        """A node is an accelerator: what it doesn't get is computed again."""
        return False

    # The worker's side, in call order

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        config, settings = self._vllm_config, self._settings
        model, kv_format = config.model_config, settings.kv_format
        layout = choose_layout(
            kv_caches,
            config.compilation_config.static_forward_context,
            num_layers=len(kv_format.layers),
            num_kv_heads=model.get_num_kv_heads(config.parallel_config),
            head_dim=model.get_head_size(),
            block_tokens=config.cache_config.block_size,
            dtype=model.dtype,
        )
        ranks: Ranks = _TensorParallelRanks() if config.parallel_config.tensor_parallel_size > 1 else SingleRank()
        heads = RankHeads(num_kv_heads=model.get_total_num_kv_heads(), num_ranks=ranks.size, rank=ranks.rank)
        wire = WireBlocks(kv_format, heads, model.dtype, convert_dtype=settings.convert_dtype)
        self._worker = WorkerSide(
            wire,
            layout,
            settings.make_link(),
            settings.make_loader_link,
            ranks=ranks,
            num_loader_threads=settings.loader_threads,
        )
        _logger.info(
            "kv_connector_ready engine=%s node=%s layout=%s cache_block_tokens=%d format=%s tp_rank=%d/%d",
            settings.engine,
            settings.node_socket,
            layout.label,
            layout.block_tokens,
            kv_format.description.partition(";")[0],
            ranks.rank,
            ranks.size,
        )

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 (vLLM's signature)
        self._of_worker.start(self._orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: all loads are asynchronous."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Nothing to do: whole blocks are saved, not layers."""

    def wait_for_save(self) -> None:
        self._of_worker.save(self._orders)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:  # noqa: ARG002
        self._ended = self._of_worker.take_ended()
        return KVConnectorTransferResults(finished_recving=set(self._ended.request_ids))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Of the same moment as ``get_transfer_results``, which vLLM calls just before: never later than
        its request.
        """
        return set(self._ended.failed_blocks)

    # The scheduler's side, in call order

    def on_new_request(self, request: Request) -> None:
        if request.resumable:
            return  # a streaming session rewrites its tokens
        self._of_scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        num_tokens = self._of_scheduler.count_loadable(request.request_id, num_computed_tokens)
        return num_tokens, bool(num_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._of_scheduler.place(request.request_id, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        blocks = scheduler_output.kv_connector_block_state
        orders = self._of_scheduler.build_step(
            scheduler_output.num_scheduled_tokens,
            lambda request_id: blocks.get_block_ids(request_id)[0],
            preempted=scheduler_output.preempted_req_ids or (),
        )
        return _Metadata(orders=orders)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._of_scheduler.end_loads(connector_output.finished_recving or (), connector_output.invalid_block_ids)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks may be freed at once: each was saved in the step that filled it."""
        del block_ids
        self._of_scheduler.end(request.request_id)
        return False, None

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._link.close()

    @property
    def _of_worker(self) -> WorkerSide:
        assert self._worker is not None, "vLLM registers its caches with a worker's connector before it runs"
        return self._worker

    @property
    def _of_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "vLLM asks the scheduler's connector about requests, not a worker's"
        return self._scheduler

    @property
    def _orders(self) -> StepOrders:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, _Metadata)
        return metadata.orders
