"""PagodaConnector: vLLM's KV connector interface, delegated to the two sides.

Whatever the daemon does, the engine goes on: every method that the engine calls is guarded, waits
have deadlines, and a load that did not come is reported by block, to be computed.
"""

import dataclasses
import importlib
import logging
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.guard import guarded, log_once
from pagoda_kv.vllm.messages import StepMessage
from pagoda_kv.vllm.plan import CachePlan, Unsupported, hashes_are_shared, make_plan
from pagoda_kv.vllm.scheduler import SchedulerSide
from pagoda_kv.vllm.stats import Counters, PagodaPromMetrics, PagodaStats
from pagoda_kv.vllm.worker import WorkerSide

logger = logging.getLogger("vllm.pagoda")

_SOURCES = {"hbm": "HOST", "host": "HOST", "ssd": "DISK", "peer": "P2P"}


def load_core() -> Any:
    return importlib.import_module("pagoda_kv._core")


class PagodaConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        config = ConnectorConfig.parse(transfer.kv_connector_extra_config)
        if transfer.kv_load_failure_policy == "fail" and not config.allow_fail_policy:
            raise ValueError(
                'kv_load_failure_policy is "fail": a page that is gone when it is loaded would end '
                'its request with an error. Add "kv_load_failure_policy": "recompute" to '
                '--kv-transfer-config (or "allow_fail_policy": true to kv_connector_extra_config)'
            )
        if getattr(vllm_config.parallel_config, "use_ubatching", False):
            # A layer is then called for each part of the batch, its blocks complete after the last.
            config = dataclasses.replace(config, layerwise=False)
        self._counters = Counters()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._client: Any = None
        self._block_count = kv_cache_config.num_blocks
        try:
            plan = make_plan(vllm_config, kv_cache_config, config)
        except Unsupported as error:
            logger.warning("pagoda: nothing is loaded or saved: %s", error)
            return
        core = load_core()
        self._client = _make_client(core, plan, config, role)
        if role == KVConnectorRole.SCHEDULER:
            _explain(plan, config)
            self._scheduler = SchedulerSide(
                core,
                self._client,
                plan,
                config,
                loads=transfer.is_kv_consumer,
                saves=transfer.is_kv_producer,
                events=_event_log(vllm_config),
                count=self._counters.count,
            )
        else:
            self._worker = WorkerSide(
                core, self._client, plan, config, count=self._counters.count
            )

    def count_error(self, method: str) -> None:
        self._counters.count(f"errors:{method}")

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is not saved is computed again

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return bool(extra_config.get("layerwise", True))

    # Of the scheduler ----------------------------------------------------------------------------

    @guarded()
    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.new_request(request)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        # Not guarded: a load that were forgotten here would be taken for done.
        if self._scheduler is not None:
            self._scheduler.update_after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        found = self._hit_tiers(request, num_external_tokens)
        sources: dict[CacheHitSource, int] = {}
        for tier, tokens in found.items():
            source = CacheHitSource[_SOURCES.get(tier, "EXTERNAL_UNSPECIFIED")]
            sources[source] = sources.get(source, 0) + tokens
        if sum(sources.values()) != num_external_tokens:
            return super().get_external_cache_hit_sources(request, num_external_tokens)
        return sources

    @guarded(dict)
    def _hit_tiers(self, request: Any, tokens: int) -> dict[str, int]:
        return self._scheduler.hit_tiers(request, tokens) if self._scheduler is not None else {}

    def build_connector_meta(self, scheduler_output: Any) -> StepMessage:
        if self._scheduler is None:
            return StepMessage()
        return self._scheduler.build_message(scheduler_output, self._contain)

    @guarded()
    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.worker_output(connector_output.kv_connector_worker_meta)

    @guarded(lambda: (False, None))
    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is not None:
            self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    @guarded(tuple)
    def take_events(self) -> Iterable[Any]:
        return self._scheduler.take_events() if self._scheduler is not None else ()

    @guarded(lambda: False)
    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler is not None else None

    # Of a worker ---------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._worker is not None:
            self._worker.register(kv_caches, self._block_count)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata, self._contain)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        # A failure in here is the worker's own affair: it marks the blocks.
        if self._worker is not None:
            self._worker.start_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._worker is not None:
            self._worker.wait_layer(layer_name)

    @guarded()
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self._worker is not None:
            self._worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.end_step(self._contain)

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        return None, self._worker.finished_loads() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    @guarded()
    def build_connector_worker_meta(self) -> Any:
        return self._worker.answer() if self._worker is not None else None

    # Of both -------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> PagodaStats | None:
        return self._counters.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PagodaStats:
        return PagodaStats(data=data if data is not None else {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> PagodaPromMetrics:
        return PagodaPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @guarded()
    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
        self._scheduler = self._worker = None
        if self._client is not None:
            self._client.close()

    def _contain(self, method: str, error: Exception) -> None:
        """What guarded() does, for a part of a method."""
        self.count_error(method)
        log_once(method, type(error).__name__, "%r", error)


def _make_client(core: Any, plan: CachePlan, config: ConnectorConfig, role: Any) -> Any:
    scheduler = role == KVConnectorRole.SCHEDULER
    return core.Client(
        model=plan.model_spec(core),
        page_tokens=plan.page_tokens,
        client_name="vllm-scheduler" if scheduler else f"vllm-worker-{plan.tp_rank}",
        control_timeout=config.lookup_deadline_ms / 1000 * (1 if scheduler else 5),
        transfer_timeout=config.load_deadline_ms / 1000,
        push_queue_bytes_max=config.save_bytes_max,
        push_staging_bytes=min(config.save_bytes_max, 256 << 20),
        **config.target.client_arguments(),
    )


def _explain(plan: CachePlan, config: ConnectorConfig) -> None:
    logger.info(
        "pagoda: %s, %d layers, %d kv heads, pages of %d tokens (%s), daemon at %s, scope %s",
        plan.opaque_layout or plan.kv_dtype,
        len(plan.layer_names),
        plan.kv_heads,
        plan.page_tokens,
        plan.precision,
        config.target.target,
        config.scope,
    )
    if not hashes_are_shared(plan):
        logger.warning(
            "pagoda: this engine's block hashes are random in each process, so nothing is shared "
            "with other engines or kept over a restart. Set PYTHONHASHSEED, or choose "
            "--prefix-caching-hash-algo sha256_cbor"
        )
    if plan.weights_revision.startswith("unread@"):
        logger.warning(
            "pagoda: the weights of %s are not on this machine yet; they are known by name and "
            "revision only. Set weights_revision in kv_connector_extra_config",
            plan.model,
        )


def _event_log(vllm_config: Any) -> Any:
    events = getattr(vllm_config, "kv_events_config", None)
    if events is None or not events.enable_kv_cache_events:
        return None
    from pagoda_kv.vllm.events import EventLog

    return EventLog()
