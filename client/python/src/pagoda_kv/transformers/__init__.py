"""Pagoda for Transformers: a cache in quantized pages, shared by prefix, and attention on them.

    from pagoda_kv.transformers import PagodaCache, PagodaConfig, connect

    model.set_attn_implementation("pagoda")
    cache = PagodaCache(model, PagodaConfig(precision="q8", window=128))
    model.generate(**inputs, past_key_values=cache)

README.md has more, with a daemon.
"""

from .attention import register
from .cache import PagodaCache, connect
from .config import PagodaConfig
from .model_facts import model_spec, weights_revision

__all__ = [
    "PagodaCache",
    "PagodaConfig",
    "connect",
    "model_spec",
    "register",
    "weights_revision",
]

register()
