"""Pagoda for vLLM: a KV connector, and a secondary tier for vLLM's own CPU offloading.

    --kv-transfer-config '{"kv_connector": "PagodaConnector",
                           "kv_connector_module_path": "pagoda_kv.vllm", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute"}'

README.md beside this file has the options and what is stored under which name.
"""

from typing import Any

_CLASSES = {
    "PagodaConnector": "pagoda_kv.vllm.connector",
    "PagodaTier": "pagoda_kv.vllm.offload_tier",
}

__all__ = ["PagodaConnector", "PagodaTier"]


def __getattr__(name: str) -> Any:
    # vLLM is imported only with the class that needs it: the parts without it run, and are
    # tested, where it is not installed.
    if name in _CLASSES:
        import importlib

        return getattr(importlib.import_module(_CLASSES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
