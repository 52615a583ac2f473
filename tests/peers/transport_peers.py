"""The clients of transport.py's peers, one class each: push, fetch, clear. What they need of a peer's
own modules they import when they start, in that peer's environment.

Each client has a region that it pushes from and one that it fetches into, both allocated before
anything is timed.
"""

import ctypes
import mmap
import socket
import struct
from collections.abc import Callable
from typing import Any

CALL_SECONDS_MAX = 30
STAGE_BYTES = 32 << 20  # what a client pushes from; more than its share of most caches
FRESH_NAMES = 1 << 18   # fresh names of one client at one size


class Missing(RuntimeError):
    """An object is not there, or not yet."""


class Region:
    """Memory of a client: `slots` for pushing, then `group` for fetching, all of one size."""

    def __init__(self, memory: memoryview, size: int, slots: int) -> None:
        self.memory, self.size, self.slots = memory, size, slots

    def slot(self, index: int) -> memoryview:
        return self.memory[index * self.size:(index + 1) * self.size]

    def landing(self, index: int) -> memoryview:
        return self.slot(self.slots + index)


def anonymous_memory(size: int) -> memoryview:
    memory = memoryview(mmap.mmap(-1, size))
    memory[:] = bytes(size)
    return memory


def address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Client:
    """What every peer's client has. `fresh_names`: how many before it overwrites its own."""

    def __init__(self, order: dict[str, Any], index: int) -> None:
        self.order, self.index = order, index
        self.region_bytes = STAGE_BYTES + max(group * size for group, size in order["groups"])
        self.region: Region

    def memory(self) -> memoryview:
        return anonymous_memory(self.region_bytes)

    def open(self, size: int, group: int) -> None:
        if not hasattr(self, "whole"):
            self.whole = self.memory()
        self.region = Region(self.whole, size, STAGE_BYTES // size)
        self.group = group

    def fresh_names(self) -> int:
        return FRESH_NAMES

    def push(self, name: int, slot: int) -> None:
        """Returns when the peer has acknowledged `group` objects, from slots `slot` on."""
        raise NotImplementedError

    def fetch(self, name: int) -> None:
        """Fetches `group` objects into the landing slots; raises where one is missing."""
        raise NotImplementedError

    def clear(self) -> None:
        """Removes all objects of all clients, where the peer can."""

    def close(self) -> None:
        pass


def connect(order: dict[str, Any]) -> socket.socket:
    """A blocking socket whose deadlines are the kernel's: Python's own cost a poll() each call."""
    stream = socket.socket(socket.AF_UNIX if "socket" in order else socket.AF_INET)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        stream.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", CALL_SECONDS_MAX, 0))
    if "socket" in order:
        stream.connect(order["socket"])
    else:
        stream.connect(("127.0.0.1", order["port"]))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def read_parts(stream: socket.socket, parts: list[memoryview]) -> None:
    """Fills all parts. Over TCP the kernel waits for all of it; on a Unix socket that is slower."""
    flags = socket.MSG_WAITALL if stream.family == socket.AF_INET else 0
    while parts:
        count = stream.recvmsg_into(parts, 0, flags)[0]
        if count == 0:
            raise ConnectionError("the server closed the connection")
        while parts and count >= len(parts[0]):
            count -= len(parts.pop(0))
        if count:
            parts[0] = parts[0][count:]


def send_parts(stream: socket.socket, parts: list[Any]) -> None:
    """All parts in one system call, or as few as the kernel allows."""
    sent = stream.sendmsg(parts)
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            stream.sendall(memoryview(part)[sent:])
            sent = 0


class Redis(Client):
    """Redis's own protocol on a socket: values are read straight into the landing slots, which
    redis-py cannot. A group is a pipeline."""

    def __init__(self, order: dict[str, Any], index: int) -> None:
        super().__init__(order, index)
        self.stream = connect(order)
        self.lines = memoryview(bytearray(64))

    def key(self, name: int) -> bytes:
        return b"%d:%d" % (self.region.size, name)

    def command(self, *words: bytes) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    def expect(self, answer: bytes, value: memoryview | None = None) -> None:
        """Reads this line, and a value and its end where one is to follow."""
        line, rest = self.lines[:len(answer)], self.lines[len(answer):len(answer) + 2]
        if value is None:
            read_parts(self.stream, [line])
        else:
            read_parts(self.stream, [line, value, rest])
        if line != answer:
            raise RuntimeError(f"redis answered {bytes(line)!r}, not {answer!r}")

    def push(self, name: int, slot: int) -> None:
        parts: list[Any] = []
        for i in range(self.group):
            key = self.key(name + i)
            parts += [b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, self.region.size),
                      self.region.slot(slot + i), b"\r\n"]
        send_parts(self.stream, parts)
        for _ in range(self.group):
            self.expect(b"+OK\r\n")

    def fetch(self, name: int) -> None:
        self.stream.sendall(b"".join(self.command(b"GET", self.key(name + i))
                                     for i in range(self.group)))
        head = b"$%d\r\n" % self.region.size
        for i in range(self.group):
            self.expect(head, self.region.landing(i))

    def clear(self) -> None:
        self.stream.sendall(self.command(b"FLUSHALL"))
        self.expect(b"+OK\r\n")

    def close(self) -> None:
        self.stream.close()


class LmcacheTcp(Client):
    """`lmcache_server`: LMCache's protocol lm:// over TCP, one object a request. A push has no
    answer, so a question whether the object exists follows it."""

    PUT, GET, EXIST = 1, 2, 3
    UINT8, SUCCESS = 6, 200

    def __init__(self, order: dict[str, Any], index: int) -> None:
        super().__init__(order, index)
        self.stream = connect(order)
        self.answer = memoryview(bytearray(36))

    def fresh_names(self) -> int:  # the server cannot remove; memory stays bounded by overwriting
        return max(2, (8 << 20) // self.region.size)

    def message(self, command: int, name: int, length: int) -> bytes:
        key = b"pagoda@1@0@%x@uint8" % (self.region.size * (1 << 30) + name)
        return struct.pack("9i150s", command, length, 2, self.UINT8, 0, length, 0, 0, 0, key.ljust(150))

    def expect(self, value: memoryview) -> None:
        read_parts(self.stream, [self.answer, value] if len(value) else [self.answer])
        code, got = struct.unpack_from("2i", self.answer)
        if (code, got) != (self.SUCCESS, len(value)):
            raise RuntimeError(f"lmcache_server answered {code} with {got} bytes")

    def push(self, name: int, slot: int) -> None:
        send_parts(self.stream, [self.message(self.PUT, name, self.region.size),
                                 self.region.slot(slot), self.message(self.EXIST, name, 0)])
        self.expect(self.answer[:0])

    def fetch(self, name: int) -> None:
        self.stream.sendall(self.message(self.GET, name, 0))
        self.expect(self.region.landing(0))

    def close(self) -> None:
        self.stream.close()


class LmcacheShm(Client):
    """`lmcache server` by LMCache's own client classes. An object is a chunk of 256 tokens that is
    one block of the engine's KV cache; a group is a sequence of chunks.

    lmcache_driven: the KV cache lies in shared memory and the server copies. engine_driven: the
    server's pool does, and the client copies. A fetch is what an engine does: look up, wait for
    the prefetch, retrieve."""

    TOKENS = 256

    def __init__(self, order: dict[str, Any], index: int) -> None:
        super().__init__(order, index)
        import torch
        import zmq
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
        torch.set_num_threads(1)
        self.torch, self.mode = torch, order["mode"]
        self.zmq = zmq.Context()
        self.zmq.setsockopt(zmq.LINGER, 0)
        self.server = RequestClientFactory.create(f"tcp://127.0.0.1:{order['port']}", context=self.zmq)
        tokens = self.server.get_chunk_size().result(timeout=CALL_SECONDS_MAX)
        if tokens != self.TOKENS:
            raise RuntimeError(f"chunks of {tokens} tokens, not {self.TOKENS}")
        self.context: Any = None
        self.registered = self.requests = 0

    def open(self, size: int, group: int) -> None:
        from lmcache.utils import EngineType
        from lmcache.v1.multiprocess.group_view import EngineGroupInfo
        from lmcache.v1.multiprocess.transfer_context import (EngineDrivenTransferContext,
                                                              create_transfer_context)
        self.leave()
        self.group, slots = group, STAGE_BYTES // size
        layer = self.torch.zeros((1 + slots + group, self.TOKENS, size // self.TOKENS // 2),
                                 dtype=self.torch.float16)  # block 0 means absent
        self.cache = {"layer.0": layer}
        self.model = f"{self.mode}-{size}-{group}"
        instance = 1000 * (self.index + 1) + self.registered
        self.registered += 1
        if self.mode == "engine_driven":
            self.context = EngineDrivenTransferContext(instance, self.server)
        else:
            self.context = create_transfer_context(self.cache, mode=self.mode, instance_id=instance,
                                                   req_client=self.server)
        self.context.register(
            self.cache, self.model, 1, 1, float(CALL_SECONDS_MAX), layout_hints={"kv_layout": "NHD"},
            engine_group_infos=[EngineGroupInfo(engine_group_id=0, layer_indices=(0,),
                                                tokens_per_block=self.TOKENS)],
            engine_type=EngineType.VLLM)
        kind = type(getattr(self.context, "_engine_driven_context", None)).__name__
        if kind == "EngineDrivenContextPickle":
            raise RuntimeError("the server's pool is not in shared memory (is /dev/shm too small?)")
        # Registering may have moved the tensor into shared memory: the view is taken after it.
        memory = memoryview(self.cache["layer.0"].view(self.torch.uint8).reshape(-1).numpy())
        self.region = Region(memory[size:], size, slots)

    def key(self, name: int, request: str, worker: int | None) -> Any:
        from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
        tokens = self.TOKENS * self.group
        return IPCCacheServerKey(model_name=self.model, world_size=1, worker_id=worker,
                                 num_kv_readers=1, token_ids=(name,) + (7,) * (tokens - 1),
                                 start=0, end=tokens, request_id=request)

    def request(self) -> str:
        self.requests += 1
        return f"{self.index}-{self.requests}"

    def blocks(self, slot: int) -> list[list[int]]:
        return [[1 + slot + i for i in range(self.group)]]

    def push(self, name: int, slot: int) -> None:
        request = self.request()
        done = self.context.submit_store(request, self.key(name, request, 0), self.cache,
                                         self.blocks(slot), self.context.create_recorded_event(), 1)
        if not done.result(timeout=CALL_SECONDS_MAX):
            raise RuntimeError("lmcache did not store")
        self.server.end_session(request)

    def fetch(self, name: int) -> None:
        request = self.request()
        self.server.lookup(self.key(name, request, None), 1).result(timeout=CALL_SECONDS_MAX)
        hits = self.server.wait_prefetch_status(request, 5.0).result(timeout=CALL_SECONDS_MAX)
        if hits != self.group:
            self.server.end_session(request)
            raise Missing(f"lmcache found {hits} of {self.group} chunks")
        done = self.context.submit_retrieve(
            request, self.key(name, request, 0), self.cache, self.blocks(self.region.slots),
            self.context.create_recorded_event(), 1, skip_first_n_tokens=0)
        if not done.result(timeout=CALL_SECONDS_MAX):
            raise RuntimeError("lmcache did not retrieve")
        self.server.end_session(request)

    def clear(self) -> None:
        self.server.clear(True).result(timeout=CALL_SECONDS_MAX)

    def leave(self) -> None:
        if self.context is not None:
            done = self.context.unregister()
            if done is not None:
                done.result(timeout=CALL_SECONDS_MAX)
            self.context.close()
            self.context = None

    def close(self) -> None:
        self.leave()
        self.server.close()
        self.zmq.term()


class Mooncake(Client):
    """Mooncake Store with registered buffers. tcp: the objects lie in another process; local: in
    this one (its clients are threads); shm: in another, which shares this client's memory."""

    shared_store: Any = None

    def __init__(self, order: dict[str, Any], index: int) -> None:
        super().__init__(order, index)
        self.mode = order["mode"]
        if Mooncake.shared_store is None:
            Mooncake.shared_store = self.start(order)
        self.store = Mooncake.shared_store

    def start(self, order: dict[str, Any]) -> Any:
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        if self.mode == "shm":
            code = store.setup_dummy(self.region_bytes + (16 << 20), 64 << 20,
                                     f"127.0.0.1:{order['owner_port']}")
        else:
            segment = order["pool_bytes"] if self.mode == "local" else 0
            code = store.setup("127.0.0.1", f"http://127.0.0.1:{order['metadata_port']}/metadata",
                               segment, 64 << 20, "tcp", "", f"127.0.0.1:{order['port']}")
        check(code == 0, "setup", code)
        return store

    def memory(self) -> memoryview:
        if self.mode == "shm":
            start = self.store.alloc_from_mem_pool(self.region_bytes)
            check(start != 0, "alloc_from_mem_pool", start)
            memory = memoryview((ctypes.c_char * self.region_bytes).from_address(start)).cast("B")
        else:
            memory = super().memory()
        self.start_address = address_of(memory)
        code = self.store.register_buffer(self.start_address, self.region_bytes)
        check(code == 0, "register_buffer", code)
        return memory

    def calls(self, name: int, slot: int) -> tuple[list[str], list[int], list[int]]:
        size, which = self.region.size, range(self.group)
        return ([f"{size}:{name + i}" for i in which],
                [self.start_address + (slot + i) * size for i in which], [size] * self.group)

    def push(self, name: int, slot: int) -> None:
        keys, addresses, sizes = self.calls(name, slot)
        if self.group == 1:
            codes = [self.store.put_from(keys[0], addresses[0], sizes[0])]
        else:
            codes = self.store.batch_put_from(keys, addresses, sizes)
        check(not any(codes), "put_from", codes)

    def fetch(self, name: int) -> None:
        keys, addresses, sizes = self.calls(name, self.region.slots)
        if self.group == 1:
            codes = [self.store.get_into(keys[0], addresses[0], sizes[0])]
        else:
            codes = self.store.batch_get_into(keys, addresses, sizes)
        check(codes == sizes, "get_into", codes)

    def clear(self) -> None:
        code = self.store.remove_all(True)  # with force: what was just read or written is leased
        check(code >= 0, "remove_all", code)

    def close(self) -> None:
        if Mooncake.shared_store is not None:
            Mooncake.shared_store = None
            self.store.close()


def check(good: bool, what: str, code: Any) -> None:
    if not good:
        raise RuntimeError(f"mooncake: {what} gave {code}")


CLIENTS: dict[str, Callable[..., Client]] = {
    "redis": Redis, "lmcache-tcp": LmcacheTcp, "lmcache-shm": LmcacheShm, "mooncake": Mooncake}
