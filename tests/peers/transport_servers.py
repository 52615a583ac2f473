"""How each path of transport.py starts: the peer's server, and what its clients must know."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

from transport_processes import Processes, free_ports

READY_SECONDS_MAX = 60
POOL_BYTES = 2 << 30
CORES = len(os.sched_getaffinity(0))
THREADS = max(1, min(4, CORES))


@dataclasses.dataclass(frozen=True)
class Path:
    """One way to one peer. Clients are processes, or threads of one process."""
    name: str
    peer: str
    client: str              # a key of CLIENTS in transport_client.py
    start: Callable[["Launch"], dict[str, Any]]
    mode: str = ""
    threads: bool = False
    batches: bool = True     # the peer has calls that move several objects
    pool: bool = False       # memory that is touched once before anything is timed


@dataclasses.dataclass
class Launch:
    path: Path
    processes: Processes
    tools: pathlib.Path      # what the set-up of the peer gave: a program, or a bin folder


def start_redis(launch: Launch) -> dict[str, Any]:
    [port] = free_ports(1)
    # 0 is no TCP port. A socket's path is limited to 107 bytes, so it is in a folder of /tmp.
    socket = str(launch.processes.folder / "redis.sock")
    tcp = launch.path.name == "redis-tcp"
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port) if tcp else "0",
               "--save", "", "--appendonly", "no", "--dir", str(launch.processes.folder)]
    if not tcp:
        command += ["--unixsocket", socket]
    if CORES >= 4:  # its documentation advises against threads on fewer
        command += ["--io-threads", str(min(4, CORES - 1))]
    launch.processes.start("redis", command, executable=str(launch.tools))
    if tcp:
        launch.processes.wait_for_port(port, READY_SECONDS_MAX)
        return {"port": port}
    launch.processes.wait_for_socket(socket, READY_SECONDS_MAX)
    return {"socket": socket}


def start_lmcache_tcp(launch: Launch) -> dict[str, Any]:
    [port] = free_ports(1)
    launch.processes.start("lmcache_server",
                           [str(launch.tools / "lmcache_server"), "127.0.0.1", str(port)])
    launch.processes.wait_for_port(port, READY_SECONDS_MAX)
    return {"port": port}


def start_lmcache_shm(launch: Launch) -> dict[str, Any]:
    port, http = free_ports(2)
    # Without --shm-name the pool is private memory, and engine_driven pickles what it moves.
    launch.processes.start("lmcache", [
        str(launch.tools / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(port),
        "--http-host", "127.0.0.1", "--http-port", str(http), "--chunk-size", "256",
        "--l1-size-gb", str(POOL_BYTES >> 30), "--eviction-policy", "LRU",
        "--supported-transfer-mode", "auto", "--max-workers", str(THREADS),
        "--shm-name", shm_name(), "--disable-observability"])
    launch.processes.wait_for_port(port, READY_SECONDS_MAX)
    return {"port": port, "python": str(launch.tools / "python")}


def shm_name() -> str:
    return f"pagoda_bench_{os.getpid()}"


def remove_shared_memory(processes: Processes) -> None:
    """What an LMCache server or client leaves in /dev/shm that had to be killed."""
    left = [pathlib.Path(f"/dev/shm/lmcache_l1_pool_{shm_name()}")]
    for pid in processes.pids:
        left += pathlib.Path("/dev/shm").glob(f"lmcache_kv_{pid}_*")
    for path in left:
        path.unlink(missing_ok=True)


def start_mooncake(launch: Launch) -> dict[str, Any]:
    port, metadata, metrics, owner = free_ports(4)
    launch.processes.start("mooncake_master", [
        str(launch.tools / "mooncake_master"), "-rpc_address=127.0.0.1", f"-rpc_port={port}",
        "-enable_http_metadata_server=true", "-http_metadata_server_host=127.0.0.1",
        f"-http_metadata_server_port={metadata}", "-metrics_host=127.0.0.1",
        f"-metrics_port={metrics}"])
    launch.processes.wait_for_port(port, READY_SECONDS_MAX)
    launch.processes.wait_for_port(metadata, READY_SECONDS_MAX)
    if launch.path.mode != "local":  # the objects lie in a process of their own
        launch.processes.start("mooncake_client", [
            str(launch.tools / "mooncake_client"), "-host=127.0.0.1", f"-port={owner}",
            f"-global_segment_size={POOL_BYTES}", f"-master_server_address=127.0.0.1:{port}",
            f"-metadata_server=http://127.0.0.1:{metadata}/metadata", "-protocol=tcp",
            f"-threads={THREADS}"])
        launch.processes.wait_for_port(owner, READY_SECONDS_MAX)
    return {"port": port, "metadata_port": metadata, "owner_port": owner,
            "pool_bytes": POOL_BYTES, "python": str(launch.tools / "python")}


PATHS = [
    Path("redis-tcp", "redis", "redis", start_redis),
    Path("redis-unix", "redis", "redis", start_redis),
    Path("lmcache-tcp", "lmcache", "lmcache-tcp", start_lmcache_tcp, batches=False),
    Path("lmcache-shm", "lmcache", "lmcache-shm", start_lmcache_shm, mode="lmcache_driven", pool=True),
    Path("lmcache-shm-engine", "lmcache", "lmcache-shm", start_lmcache_shm, mode="engine_driven",
         pool=True),
    Path("mooncake-tcp", "mooncake", "mooncake", start_mooncake, mode="tcp", pool=True),
    Path("mooncake-shm", "mooncake", "mooncake", start_mooncake, mode="shm", pool=True),
    Path("mooncake-local", "mooncake", "mooncake", start_mooncake, mode="local", pool=True,
         threads=True),
]
