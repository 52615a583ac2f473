"""The Pagoda client in C++, for Python. Everything that waits gives up the GIL.

Names follow client/client.h. Keys, roots, ids and hashes are `bytes`. Precisions are the words
"q2", "q3", "q4", "q8", "raw16" and "opaque".
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Precision = Literal["q2", "q3", "q4", "q8", "raw16", "opaque"]
Bytes = npt.NDArray[np.uint8]

class PagodaError(Exception):
    """`code` is the name of the status: "UNAVAILABLE", "DEADLINE_EXCEEDED", "NOT_FOUND", ..."""

    code: str

class LayerGroup:
    def __init__(
        self,
        layer_count: int,
        kv_head_count: int,
        head_dim: int,
        kind: Literal["full", "sliding_window", "mla", "state"] = "full",
        window_tokens: int = 0,
    ) -> None: ...
    layer_count: int
    kv_head_count: int
    head_dim: int
    kind: str
    window_tokens: int

class ModelSpec:
    def __init__(
        self,
        model: str,
        groups: Sequence[LayerGroup],
        *,
        weights_revision: str = "",
        adapter: str = "",
        kv_dtype: Literal["bf16", "f16", "f32", "opaque"] = "bf16",
        rope_style: Literal["none", "half_split", "interleaved"] = "half_split",
        rope_theta: float = 0.0,
        rope_rotary_dims: int = 0,
        rope_scaling: str = "",
        attention_mode: str = "dense",
        opaque_layout: str = "",
    ) -> None: ...
    model: Final[str]
    def identity(self) -> bytes: ...

class Scope:
    """Who may share. `root` is the parent of first pages."""

    kind: Final[str]
    name: Final[str]
    id: Final[bytes]
    root: Final[bytes]
    may_push: Final[bool]

class ServerInfo:
    version: Final[str]
    instance_id: Final[str]  # changes with every start of the daemon
    tenant: Final[str]
    identity: Final[bytes]
    scopes: Final[list[Scope]]
    page_tokens: Final[int]
    batch_pages_max: Final[int]
    ladder: Final[str]
    shm_socket: Final[str]

class FoundPage:
    loading: Final[bool]  # on SSD, on its way up
    tier: Final[str]
    precision: Final[str]
    fidelity: Final[str]
    bytes: Final[int]

class Hit:
    """What a lookup found: a prefix of the keys; with `parts`, page k * len(parts) + p is key k's
    record of part p. len(hit) is the number of pages. False if empty."""

    pages: Final[list[FoundPage]]
    lease: Final[bytes]
    lease_seconds: Final[float]  # that are left
    chain_index: Final[int]
    loading: Final[bool]  # any page of it
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

class PageHeader:
    key: Final[bytes]
    parent: Final[bytes]
    head_begin: Final[int]
    head_count: Final[int]
    base_position: Final[int]
    page_tokens: Final[int]
    layer_count: Final[int]
    precision: Final[str]
    fidelity: Final[str]
    segment_lengths: Final[list[int]]  # bytes of payload
    segment_layers: Final[list[tuple[int, int]]]  # begin, count

class FetchedPage:
    header: Final[PageHeader]
    tier: Final[str]
    segments: Final[list[Bytes]]  # payloads; views, nothing is copied
    def data(self) -> Bytes: ...  # the payloads of all segments, joined (a copy if more than one)

class FetchResult:
    pages: Final[list[FetchedPage]]  # complete and verified, a prefix of what was asked
    error: Final[PagodaError | None]  # why it is shorter
    bytes: Final[int]

class MappedPages:
    """Pages in the daemon's own memory, read-only. What was read counts only if still_valid() says
    so after the last read."""

    def __len__(self) -> int: ...
    def header(self, index: int) -> PageHeader: ...
    def segments(self, index: int) -> list[Bytes]: ...  # read-only views
    def spans(self) -> npt.NDArray[np.uint64]:
        """All pages: rows (page, layer_begin, layer_count, address, length), for copy_spans()."""
    def still_valid(self) -> bool: ...
    @property
    def error(self) -> PagodaError | None: ...  # why they are fewer than asked

class PageFetch:
    """A fetch under way, layer by layer."""

    def wait_headers(self, timeout: float) -> list[PageHeader]: ...
    def wait_layer(self, layer: int, timeout: float) -> None: ...
    def wait(self) -> FetchResult: ...
    def cancel(self) -> None: ...

class Pusher:
    """A stream of pages. Never waits but in flush()."""

    def push(
        self,
        scope: Scope,
        key: bytes,
        parent: bytes,
        segments: Sequence[Any],  # buffers; held until the page is answered
        *,
        parent_is_root: bool = False,
        token_ids: Sequence[int] | npt.NDArray[np.uint32] | None = None,
        base_position: int = 0,
        fidelity: Precision = "raw16",
        precision: Precision = "raw16",  # or "opaque"
        part: tuple[int, int] = (0, 0),  # kv heads: begin, count (0: all)
        opaque_layer_bytes: int = 0,
    ) -> None: ...
    def reserve(self, size: int) -> Bytes:
        """Writable memory that the daemon can read: segments in it are pushed without a copy."""
    def flush(self, timeout: float) -> None: ...
    def stats(self) -> dict[str, int]:
        """pushed, stored, already_stored, replaced, failed, bytes"""

class Client:
    def __init__(
        self,
        target: str = "127.0.0.1:7070",
        model: ModelSpec | None = None,
        *,
        page_tokens: int = 64,
        token: str = "",
        shm_socket: str = "",
        client_name: str = "pagoda-kv",
        backend_tag: int = 0,
        connect_timeout: float = 2.0,
        control_timeout: float = 1.0,
        transfer_timeout: float = 10.0,
        reconnect_interval: float = 0.5,
        push_queue_bytes_max: int = 256 << 20,
        push_staging_bytes: int = 64 << 20,
        tls_ca: str = "",
        tls_certificate: str = "",
        tls_key: str = "",
        insecure: bool = False,
    ) -> None: ...
    def wait_connected(self, timeout: float) -> None: ...
    @property
    def connected(self) -> bool: ...
    @property
    def server_info(self) -> ServerInfo | None: ...
    def scope(self, name: str = "private") -> Scope | None: ...  # "private", "group:NAME", "public"
    def lookup(
        self,
        scope: Scope,
        keys: Sequence[bytes],
        *,
        precision_min: Precision = "raw16",
        fidelity_min: Precision = "raw16",
        parts: Sequence[tuple[int, int]] = (),
        request_id: bytes = b"",  # 16 bytes; asked again with the same one renews the same lease
        sequence_id: bytes = b"",
        peek: bool = False,
    ) -> Hit: ...
    def fetch(
        self,
        hit: Hit,
        keys: Sequence[bytes],  # those of the lookup, each once: also with parts
        *,
        begin: int = 0,
        count: int = 0,
        precision_max: Precision | None = None,
    ) -> FetchResult: ...
    def start_fetch(
        self, hit: Hit, keys: Sequence[bytes], *, begin: int = 0, count: int = 0
    ) -> PageFetch: ...
    def map(
        self, hit: Hit, keys: Sequence[bytes], *, begin: int = 0, count: int = 0
    ) -> MappedPages: ...
    def release(self, hit: Hit | bytes) -> None: ...
    def renew(self, hit: Hit | bytes) -> None: ...
    def prefetch(
        self,
        scope: Scope,
        keys: Sequence[bytes],
        deadline: float,
        *,
        parts: Sequence[tuple[int, int]] = (),
    ) -> None: ...
    def open_sequence(
        self, length_tokens: int, window_tokens: int, precision: Precision
    ) -> bytes: ...
    def advance_sequence(self, sequence_id: bytes, length_tokens: int) -> None: ...
    def close_sequence(self, sequence_id: bytes) -> None: ...
    def report_ttft(
        self, sequence_id: bytes, seconds: float, prompt_tokens: int, hit_tokens: int
    ) -> None: ...
    def pusher(
        self,
        sequence_id: bytes = b"",
        # Of a key and "stored", "already_stored", "replaced" or "CODE: message".
        callback: Callable[[bytes, str], None] | None = None,
    ) -> Pusher: ...
    def stats(self) -> dict[str, int]: ...
    def path_lines(self) -> str: ...
    def close(self) -> None: ...  # ends the session; later calls raise
    def __enter__(self) -> Client: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def key_chain(
    root: bytes, token_ids: Sequence[int] | npt.NDArray[np.uint32], page_tokens: int
) -> list[bytes]: ...
def external_keys(root: bytes, hashes: Sequence[bytes]) -> list[bytes]:
    """Keys of an engine's own block hashes, which stay opaque."""
def crc32c(data: Any, crc: int = 0) -> int: ...
def copy_spans(spans: npt.NDArray[np.uint64], threads: int = 1) -> int:
    """Copies rows (destination, source, length) of addresses, without the GIL; returns the bytes.
    The caller answers for the addresses."""
def opaque_segment_layers(layer_count: int, layer_bytes: int) -> list[tuple[int, int]]:
    """How an opaque page's layers fall into segments: (begin, count) each."""
