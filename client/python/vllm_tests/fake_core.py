"""The C++ client's Python interface (_core.pyi) over a daemon in memory, for tests.

`daemon(target)` is the daemon: its pages can be evicted, it can be killed, restarted, made slow, or
told to fail calls. Clients of one target share it. What the fake checks is what the daemon checks:
parents first, segments of the right size, leases.
"""

import ctypes
import hashlib
import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np


class PagodaError(Exception):
    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code


class LayerGroup(SimpleNamespace):
    def __init__(self, layer_count, kv_head_count, head_dim, kind="full", window_tokens=0):
        super().__init__(
            layer_count=layer_count, kv_head_count=kv_head_count, head_dim=head_dim, kind=kind,
            window_tokens=window_tokens,
        )


class ModelSpec:
    def __init__(self, model, groups, **facts):
        self.model, self.groups, self.facts = model, list(groups), facts

    def identity(self) -> bytes:
        text = repr((self.model, [vars(one) for one in self.groups], sorted(self.facts.items())))
        return hashlib.sha256(text.encode()).digest()


class Daemon:
    """Pages by (root, key, part). All that a test may turn is an attribute."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pages: dict[tuple, SimpleNamespace] = {}
        self.leases: dict[bytes, tuple[float, set]] = {}
        self.alive = True
        self.instance = 1
        self.lease_seconds = 30.0
        self.delay: dict[str, float] = {}  # call -> seconds
        self.fail: dict[str, PagodaError] = {}  # call -> error
        self.loading: set[tuple] = set()
        self.calls: list[str] = []
        self.pushed: list[tuple[bytes, tuple[int, int]]] = []
        self.has_shm = True
        self.records_max = 4096

    def call(self, name: str) -> None:
        self.calls.append(name)
        if delay := self.delay.get(name):
            time.sleep(delay)
        if not self.alive:
            raise PagodaError("UNAVAILABLE", "the daemon is away")
        if error := self.fail.get(name):
            raise error

    def restart(self, *, keep_pages: bool) -> None:
        with self.lock:
            self.alive = True
            self.instance += 1
            self.leases.clear()
            if not keep_pages:
                self.drop(list(self.pages))

    def drop(self, records) -> None:
        with self.lock:
            for record in list(records):
                page = self.pages.pop(record, None)
                if page is not None:
                    page.valid = False

    def leased(self) -> set:
        now = time.monotonic()
        return {
            record
            for until, records in self.leases.values()
            if until > now
            for record in records
        }

    def evict(self) -> int:
        """Whatever no lease holds."""
        with self.lock:
            gone = [record for record in self.pages if record not in self.leased()]
            self.drop(gone)
            return len(gone)


_daemons: dict[str, Daemon] = {}


def daemon(target: str = "fake") -> Daemon:
    return _daemons.setdefault(target, Daemon())


class Hit:
    def __init__(self, pages, lease, seconds):
        self.pages, self.lease, self.chain_index = pages, lease, 0
        self._until = time.monotonic() + seconds

    @property
    def lease_seconds(self) -> float:
        return self._until - time.monotonic()

    @property
    def loading(self) -> bool:
        return any(page.loading for page in self.pages)

    def __len__(self) -> int:
        return len(self.pages)


class Mapped:
    def __init__(self, pages):
        self._pages, self.error = pages, None

    def __len__(self):
        return len(self._pages)

    def header(self, index):
        return self._pages[index].header

    def segments(self, index):
        return self._pages[index].segments

    def spans(self):
        rows = [
            (index, begin, count, segment.ctypes.data, segment.nbytes)
            for index, page in enumerate(self._pages)
            for segment, (begin, count) in zip(page.segments, page.header.segment_layers)
        ]
        return np.asarray(rows, np.uint64).reshape(-1, 5)

    def still_valid(self):
        return all(page.valid for page in self._pages)


class Client:
    def __init__(self, target="fake", model=None, *, page_tokens=64, **options):
        self._daemon = daemon(target)
        self._model, self._page_tokens, self.options = model, page_tokens, options
        self._identity = model.identity() if model is not None else b""
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._daemon.alive and not self._closed

    @property
    def server_info(self):
        if not self.connected:
            return None
        return SimpleNamespace(instance_id=str(self._daemon.instance), version="fake",
                               batch_pages_max=self._daemon.records_max)

    def wait_connected(self, timeout):
        self._daemon.call("wait_connected")

    def scope(self, name="private"):
        if not self.connected:
            return None
        root = hashlib.sha256(self._identity + name.encode()).digest()
        return SimpleNamespace(kind=name, name=name, id=root, root=root, may_push=True)

    def lookup(self, scope, keys, *, precision_min="raw16", fidelity_min="raw16", parts=(),
               request_id=b"", sequence_id=b"", peek=False):
        self._daemon.call("lookup")
        parts = list(parts) or [(0, 0)]
        if len(keys) * len(parts) > self._daemon.records_max:
            raise PagodaError("INVALID_ARGUMENT", "too many records in one question")
        with self._daemon.lock:
            found, records = [], set()
            for key, part in itertools.product(keys, parts):
                record = (scope.root, key, tuple(part))
                page = self._daemon.pages.get(record)
                if page is None:
                    break
                loading = record in self._daemon.loading
                found.append(SimpleNamespace(
                    loading=loading, tier="ssd" if loading else "host", fidelity="raw16",
                    precision=page.header.precision, bytes=page.bytes,
                ))
                records.add(record)
            lease = request_id or hashlib.sha256(str(time.monotonic()).encode()).digest()[:16]
            if found and not peek:
                until = time.monotonic() + self._daemon.lease_seconds
                self._daemon.leases[lease] = (until, records)
            return Hit(found, lease, self._daemon.lease_seconds)

    def _leased_pages(self, hit, keys, begin, count):
        until, records = self._daemon.leases.get(hit.lease, (0.0, set()))
        if until <= time.monotonic():
            raise PagodaError("NOT_FOUND", "no such lease")
        by_key = {}
        for record in records:
            by_key.setdefault(record[1], []).append(record)
        # Keys are those of the lookup, each once; pages are theirs, key by key.
        wanted = [
            record
            for key in keys
            for record in sorted(by_key.get(key, []), key=lambda one: one[2])
        ]
        if len(wanted) < len(hit):
            raise PagodaError("INVALID_ARGUMENT", "fewer keys than were looked up")
        pages = []
        for record in wanted[begin : begin + (count or len(hit))]:
            if record not in self._daemon.pages:
                break
            pages.append(self._daemon.pages[record])
        return pages

    def map(self, hit, keys, *, begin=0, count=0):
        self._daemon.call("map")
        if not self._daemon.has_shm:
            raise PagodaError("UNAVAILABLE", "no shared memory")
        with self._daemon.lock:
            return Mapped(self._leased_pages(hit, keys, begin, count))

    def fetch(self, hit, keys, *, begin=0, count=0, precision_max=None):
        self._daemon.call("fetch")
        with self._daemon.lock:
            pages = self._leased_pages(hit, keys, begin, count)
            copies = [
                SimpleNamespace(
                    header=page.header, tier="host", segments=[one.copy() for one in page.segments]
                )
                for page in pages
            ]
            return SimpleNamespace(pages=copies, error=None, bytes=0)

    def release(self, hit):
        self._daemon.call("release")
        with self._daemon.lock:
            self._daemon.leases.pop(getattr(hit, "lease", hit), None)

    def pusher(self, sequence_id=b"", callback=None):
        self._daemon.call("pusher")
        return Pusher(self._daemon, self._daemon.instance, self._model, self._page_tokens, callback)

    def close(self):
        self._closed = True


class Pusher:
    def __init__(self, owner, instance, model, page_tokens, callback):
        self._daemon, self._instance, self._callback = owner, instance, callback
        self._model, self._page_tokens = model, page_tokens

    def reserve(self, size):
        self._daemon.call("reserve")
        return np.zeros(size, np.uint8)

    def push(self, scope, key, parent, segments, *, parent_is_root=False, token_ids=None,
             base_position=0, fidelity="raw16", precision="raw16", part=(0, 0),
             opaque_layer_bytes=0):
        self._daemon.call("push")
        if self._instance != self._daemon.instance:
            raise PagodaError("UNAVAILABLE", "the stream is over")
        layers = self._model.groups[0].layer_count
        size = sum(one.nbytes for one in segments)
        assert precision != "opaque" or size == layers * opaque_layer_bytes, "a page's size"
        assert parent_is_root == (parent == scope.root), "the root is the parent of first pages"
        with self._daemon.lock:
            record = (scope.root, key, tuple(part))
            parents = {one[1] for one in self._daemon.pages if one[0] == scope.root}
            if not parent_is_root and parent not in parents:
                outcome = "FAILED_PRECONDITION: unknown parent"
            elif record in self._daemon.pages:
                outcome = "already_stored"
            else:
                outcome = "stored"
                layout = opaque_segment_layers(layers, size // layers)
                header = SimpleNamespace(
                    key=key, parent=parent, head_begin=part[0], head_count=part[1],
                    base_position=base_position, page_tokens=self._page_tokens,
                    layer_count=layers, precision=precision, fidelity=fidelity,
                    segment_lengths=[one.nbytes for one in segments], segment_layers=layout,
                )
                self._daemon.pages[record] = SimpleNamespace(
                    header=header, segments=[one.copy() for one in segments], bytes=size,
                    valid=True,
                )
            self._daemon.pushed.append((key, tuple(part)))
        if self._callback is not None:
            self._callback(key, outcome)

    def flush(self, timeout):
        pass


def external_keys(root, hashes):
    return [
        hashlib.sha256(b"pagoda/ext/v1" + root + len(one).to_bytes(4, "little") + one).digest()
        for one in hashes
    ]


def copy_spans(spans, threads=1):
    assert spans.dtype == np.uint64 and spans.ndim == 2 and spans.shape[1] == 3
    for target, source, length in spans.tolist():
        ctypes.memmove(target, source, length)
    return int(spans[:, 2].sum())


def opaque_segment_layers(layer_count, layer_bytes):
    each = max(1, (256 << 10) // layer_bytes)
    return [(begin, min(each, layer_count - begin)) for begin in range(0, layer_count, each)]
