"""Counters of this connector, the way vLLM logs and exports them (vllm:pagoda_*).

A worker or the scheduler counts; vLLM takes what was counted since the last step, adds it up over
processes and steps, and gives it to its logger and to Prometheus.
"""

import threading
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

# Name -> (what it counts, the label after the colon). Every name that is counted stands here.
COUNTERS: dict[str, tuple[str, str]] = {
    "lookups": ("requests looked up", ""),
    "lookup_failures": ("lookups without an answer: misses", "reason"),
    "load_wait_exceeded": ("hits cut short because pages were still coming from SSD", ""),
    "lease_expired": ("leases that ran out before the request's turn came", ""),
    "release_failures": ("leases that could not be given back and ended by themselves", ""),
    "load_tokens": ("prompt tokens to be loaded instead of computed", ""),
    "loaded_pages": ("pages loaded, one kv head each", ""),
    "loaded_bytes": ("bytes loaded", ""),
    "load_seconds": ("time of loads, from the question to the last byte", ""),
    "load_wait_seconds": ("time that forward passes waited for loads", ""),
    "load_failures": ("loads that failed in part or whole: their blocks are computed", "reason"),
    "saved_pages": ("pages that the daemon stored", ""),
    "saved_bytes": ("bytes of them", ""),
    "already_stored_pages": ("pages pushed that the daemon had", ""),
    "save_seconds": ("time spent to copy pages out of the cache", ""),
    "save_skipped": ("pages not pushed", "reason"),
    "save_failures": ("pages that the daemon did not take", "reason"),
    "daemon_restarts": ("times that the daemon came back as another", ""),
    "errors": ("exceptions kept away from the engine", "method"),
}


class Counters:
    """Counts from any thread, until it is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def count(self, name: str, amount: float = 1) -> None:
        assert name.partition(":")[0] in COUNTERS, name
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount

    def take(self) -> "PagodaStats | None":
        with self._lock:
            values, self._values = self._values, {}
        return PagodaStats(data=values) if values else None


class PagodaStats(KVConnectorStats):
    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "PagodaStats":
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        values = {f"pagoda {name}": round(value, 4) for name, value in sorted(self.data.items())}
        seconds = self.data.get("load_seconds", 0)
        if seconds:
            rate = self.data.get("loaded_bytes", 0) / seconds / 1e9
            values["pagoda load GB/s"] = round(rate, 3)
        return values

    def is_empty(self) -> bool:
        return not self.data


class PagodaPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(
                name=f"vllm:pagoda_{name}",
                documentation=f"Pagoda connector: {text}.",
                labelnames=[*labelnames, label] if label else list(labelnames),
            )
            for name, (text, label) in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = [str(value) for value in self.per_engine_labelvalues[engine_idx]]
        for key, amount in transfer_stats_data.items():
            name, _, label = key.partition(":")
            if name in self._counters and amount > 0:
                labels = [*values, label] if COUNTERS[name][1] else values
                self._counters[name].labels(*labels).inc(amount)
