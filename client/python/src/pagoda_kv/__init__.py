"""Client of Pagoda, a KV-cache service for LLM inference. README.md has an example."""

from ._core import (
    Client,
    FetchedPage,
    FetchResult,
    FoundPage,
    Hit,
    LayerGroup,
    MappedPages,
    ModelSpec,
    PageFetch,
    PageHeader,
    PagodaError,
    Pusher,
    Scope,
    ServerInfo,
    copy_spans,
    crc32c,
    external_keys,
    key_chain,
    opaque_segment_layers,
)

__version__ = "0.1.0"

__all__ = [
    "Client",
    "FetchResult",
    "FetchedPage",
    "FoundPage",
    "Hit",
    "LayerGroup",
    "MappedPages",
    "ModelSpec",
    "PageFetch",
    "PageHeader",
    "PagodaError",
    "Pusher",
    "Scope",
    "ServerInfo",
    "copy_spans",
    "crc32c",
    "external_keys",
    "key_chain",
    "opaque_segment_layers",
]
