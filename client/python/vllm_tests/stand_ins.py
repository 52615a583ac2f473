"""The few names of vLLM that the connector imports, for machines without vLLM.

`install()` does nothing where vLLM is there: then the same tests run against its own classes.
"""

import dataclasses
import enum
import hashlib
import importlib.util
import pickle
import sys
import types

HAVE_VLLM = importlib.util.find_spec("vllm") is not None


def _module(name: str, **names) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            module = types.ModuleType(path)
            module.__path__ = []
            sys.modules[path] = module
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
    vars(sys.modules[name]).update(names)


class _Base:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._role = role
        self._connector_metadata = None

    def bind_connector_metadata(self, metadata):
        self._connector_metadata = metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def get_external_cache_hit_sources(self, request, tokens):
        return {_Source.EXTERNAL_UNSPECIFIED: tokens} if tokens else {}


class _Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class _Source(str, enum.Enum):
    HOST = "host"
    P2P = "p2p"
    DISK = "disk"
    EXTERNAL_UNSPECIFIED = "external_unspecified"


@dataclasses.dataclass
class _Stats:
    data: dict = dataclasses.field(default_factory=dict)


class _Prom:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self._counter_cls = metric_types["counter"]
        self._labelnames = labelnames
        self.per_engine_labelvalues = per_engine_labelvalues


@dataclasses.dataclass
class _BlockStored:
    block_hashes: list
    parent_block_hash: object
    token_ids: list
    block_size: int
    lora_id: object
    medium: str
    lora_name: object


@dataclasses.dataclass
class _BlockRemoved:
    block_hashes: list
    medium: str


def _sha256(value) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def install() -> None:
    if HAVE_VLLM:
        return
    v1 = "vllm.distributed.kv_transfer.kv_connector.v1"
    _module("vllm", __version__="0.32.0")
    _module(
        f"{v1}.base", KVConnectorBase_V1=_Base, KVConnectorRole=_Role,
        KVConnectorMetadata=type("KVConnectorMetadata", (), {}),
        KVConnectorWorkerMetadata=type("KVConnectorWorkerMetadata", (), {}),
        SupportsHMA=type("SupportsHMA", (), {}),
    )
    _module(f"{v1}.metrics", KVConnectorStats=_Stats, KVConnectorPromMetrics=_Prom)
    _module("vllm.distributed.kv_events", BlockStored=_BlockStored, BlockRemoved=_BlockRemoved)
    _module("vllm.v1.metrics.cache_hit_source", CacheHitSource=_Source)
    _module("vllm.utils.hashing", get_hash_fn_by_name=lambda name: _sha256)
    _module(
        "vllm.v1.core.kv_cache_utils", maybe_convert_block_hash=bytes,
        resolve_none_hash_seed=lambda function: "seed",
    )
    _module("vllm.v1.attention.backends.cpu_attn", _get_attn_isa=lambda *facts: "vec")
