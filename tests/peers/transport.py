#!/usr/bin/env python3
"""Pagoda's data planes beside those of its peers: Redis, LMCache, Mooncake Store.

Each peer's own server runs on this machine, on free ports of 127.0.0.1 or on a Unix socket, and
its clients push and fetch objects as large as KV-cache pages. `pagoda bench transport` then does
the same with Pagoda, and both are set side by side. The first run sets the peers up, pinned by
version, in the cache folder (deploy/cache_folder.sh): 2 GB and about two minutes.

  redis-tcp, redis-unix   Redis's protocol on a bare socket, values read into place
  lmcache-tcp             lmcache_server, the protocol lm:// on a bare socket, read into place
  lmcache-shm             `lmcache server`, which copies from and to the client's shared memory
  lmcache-shm-engine      the same server, whose pool is shared memory that the client copies to
  mooncake-tcp            Mooncake Store, objects in another process, registered buffers
  mooncake-shm            the same with the client's memory shared with that process
  mooncake-local          objects in the client's own process; its clients are threads, because
                          objects of another process would go over TCP

A client is a process, except as said, with one call in flight. Per size 128 MiB of objects are
live; every client fetches them in random order into memory it owns, and pushes fresh ones from a
region of 32 MiB. After each cell every byte of a sample is compared. Peers with calls for several
objects are measured with those too: `batch` objects a call, whose times are those of the call.
A push counts when the peer has acknowledged it. At most 1 GiB is pushed per cell, so that it fits
the peers' pools of 2 GiB, which are touched once before anything is timed.

Pagoda's clients are threads of one process, beside its daemon: `pagoda bench transport --help`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import transport_report as report
from transport_processes import ClientProcess, PeerError, Processes
from transport_servers import PATHS, POOL_BYTES, Launch, Path, remove_shared_memory
from transport_setup import HERE, SET_UP, SetupError, say

LIVE_BYTES = 128 << 20
PUSH_BYTES_MAX = 1 << 30     # of one cell
BATCH_BYTES_MAX = 16 << 20
ANSWER_SECONDS_MAX = 120
VERIFY_SAMPLES = 4
SIZE_BYTES_MIN, SIZE_BYTES_MAX = 4 << 10, 16 << 20
CLIENTS_MAX = 32
EXAMPLES = """examples:
  tests/peers/transport.py                                  # everything, about ten minutes
  tests/peers/transport.py --only redis --seconds 0.3       # one peer, quickly
  tests/peers/transport.py --only mooncake-shm,pagoda --sizes 1MiB --json transport.json
  tests/peers/transport.py --full --json transport.json     # 16 clients too
  tests/peers/transport.py --batch 1 --turns 5 --seconds 0.3   # on a busy machine

JSON keys: machine {cpu, cores, kernel, python, date, commit, load_at_start, load_at_end, versions},
  rows[] {path, op (fetch, push), bytes, clients, batch, p50_us, p99_us, p999_us, gbps, calls,
  clients_are, load}, comparison[] {pagoda, peer, op, bytes, clients, gbps_ratio, p50_ratio},
  failed[] {path, reason}

A peer that cannot be set up or fails is named with the reason, and the others go on; the exit code
is 1 only if none worked. Ctrl-C ends all servers and keeps the rows so far."""


def parse_size(word: str) -> int:
    for unit, shift in (("KiB", 10), ("MiB", 20), ("", 0)):
        if word.endswith(unit):
            number = word[:len(word) - len(unit)].strip()
            size = int(number) << shift if number.isdigit() else 0
            break
    if not SIZE_BYTES_MIN <= size <= SIZE_BYTES_MAX or size & (size - 1):
        raise argparse.ArgumentTypeError(f"{word!r} is no power of two from 4KiB to 16MiB")
    return size


def parse_sizes(words: str) -> list[int]:
    return [parse_size(word) for word in words.split(",")]


def parse_clients(words: str) -> list[int]:
    if not all(word.isdigit() and 1 <= int(word) <= CLIENTS_MAX for word in words.split(",")):
        raise argparse.ArgumentTypeError(f"{words!r} is no list of counts from 1 to {CLIENTS_MAX}")
    return [int(word) for word in words.split(",")]


def parse_only(words: str) -> list[str]:
    known = {*(path.name for path in PATHS), *SET_UP, "pagoda"}
    for word in words.split(","):
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(sorted(known))}")
    return words.split(",")


def parse_seconds(word: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.05 <= float(word) <= 60:
            return float(word)
    raise argparse.ArgumentTypeError(f"{word!r} is no number from 0.05 to 60")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=parse_only, metavar="PEER,...",
                        help="redis, lmcache, mooncake, pagoda, or single paths; default: all")
    parser.add_argument("--sizes", type=parse_sizes, metavar="SIZE,...",
                        default=parse_sizes("64KiB,256KiB,1MiB,4MiB,8MiB"),
                        help="of the objects; default: 64KiB,256KiB,1MiB,4MiB,8MiB")
    parser.add_argument("--clients", type=parse_clients, metavar="N,...", help="default: 1,4")
    parser.add_argument("--full", action="store_true", help="16 clients too")
    parser.add_argument("--seconds", type=parse_seconds, default=1.0, metavar="S",
                        help="of each cell; default: 1.0")
    parser.add_argument("--turns", type=int, choices=range(1, 21), default=1, metavar="N",
                        help="all paths one after the other, N times; of each cell the median by "
                             "GB/s is kept, which a busy machine needs; default: 1")
    parser.add_argument("--batch", type=int, choices=[1, 2, 4, 8, 16], default=16, metavar="N",
                        help="objects of a call, at most 16 MiB of them; 1: no such cells; default: 16")
    parser.add_argument("--pagoda", type=pathlib.Path, metavar="FILE",
                        default=HERE.parents[1] / "build/release/bin/pagoda",
                        help="default: build/release/bin/pagoda")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write it as JSON")
    args = parser.parse_args()
    args.clients = sorted({*(args.clients or [1, 4]), *([16] if args.full else [])})
    args.sizes = sorted(set(args.sizes))
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json: no folder {args.json.absolute().parent}")
    return args


def wanted(args: argparse.Namespace, *names: str) -> bool:
    return args.only is None or any(name in args.only for name in names)


def groups_of(path: Path, args: argparse.Namespace, size: int) -> list[int]:
    """How many objects a call moves: one, and a batch where the peer has such calls."""
    batch = min(args.batch, BATCH_BYTES_MAX // size)
    return [1, batch] if path.batches and batch > 1 else [1]


class Fleet:
    """The client processes of one path, given orders together."""

    def __init__(self, launch: Launch, facts: dict[str, Any], args: argparse.Namespace) -> None:
        self.path, self.args = launch.path, args
        most = max(args.clients)
        count = 1 if self.path.threads else most
        groups = [(group, size) for size in args.sizes for group in groups_of(self.path, args, size)]
        python = facts.pop("python", sys.executable)
        order = {**facts, "client": self.path.client, "mode": self.path.mode, "groups": groups,
                 "lanes": most if self.path.threads else 1}
        self.processes = [ClientProcess(launch.processes, python, {**order, "index": index})
                          for index in range(count)]
        self.answers(count)

    def answers(self, count: int) -> list[Any]:
        return [process.receive(self.args.seconds + ANSWER_SECONDS_MAX)
                for process in self.processes[:count]]

    def tell(self, count: int, **order: Any) -> list[Any]:
        for process in self.processes[:count]:
            process.send(order)
        return self.answers(count)

    def tell_all(self, **order: Any) -> list[Any]:
        return self.tell(len(self.processes), **order)

    def tell_clients(self, clients: int, **order: Any) -> list[Any]:
        return self.tell(1 if self.path.threads else clients, clients=clients, **order)

    def open(self, size: int, group: int) -> None:
        self.tell_all(do="open", size=size, group=group, live=LIVE_BYTES // size)

    def fill(self, size: int, group: int) -> None:
        """All live objects, each process a part of them."""
        calls, count = LIVE_BYTES // size // group, len(self.processes)
        for index, process in enumerate(self.processes):
            process.send({"do": "fill", "begin": calls * index // count * group,
                          "end": calls * (index + 1) // count * group})
        self.answers(count)

    def touch_pool(self) -> None:
        """Pushes most of the pool once, so that its pages are there when time is taken."""
        size = self.args.sizes[-1]
        self.open(size, 1)
        self.tell_clients(1, do="measure", op="push", seconds=15.0,
                          calls_max=POOL_BYTES * 3 // 4 // size)
        self.tell(1, do="clear")

    def cell(self, op: str, size: int, group: int, clients: int) -> report.Row:
        calls_max = PUSH_BYTES_MAX // (size * group * clients) if op == "push" else 1 << 30
        parts = self.tell_clients(clients, do="measure", op=op, seconds=self.args.seconds,
                                  calls_max=calls_max)
        verified = self.tell_clients(clients, do="verify", op=op, samples=VERIFY_SAMPLES)
        if not all(verified):
            raise PeerError(f"{op} of {size} bytes: nothing could be verified")
        return report.make_row(self.path.name, op, size, clients, group,
                               "threads" if self.path.threads else "processes",
                               [lane for process in parts for lane in process])

    def rows(self) -> Iterator[report.Row]:
        if self.path.pool:
            self.touch_pool()
        for size in self.args.sizes:
            for group in groups_of(self.path, self.args, size):
                self.open(size, group)
                self.fill(size, group)
                for clients in self.args.clients:
                    yield self.cell("fetch", size, group, clients)
                for clients in self.args.clients:
                    yield self.cell("push", size, group, clients)
                    self.tell(1, do="clear")


class Results:
    """All rows, kept in the JSON file from the first on."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.file = args.json
        self.machine = report.machine_facts()
        self.machine["versions"] = {}
        self.measured: list[report.Row] = []
        self.failed: list[dict[str, str]] = []

    def add(self, row: report.Row) -> None:
        if not self.measured:
            print(report.HEADER)
        self.measured.append(row)
        print(report.row_text(row), flush=True)

    @property
    def rows(self) -> list[report.Row]:
        return report.median_rows(self.measured)

    def fail(self, path: str, reason: object) -> None:
        say(f"{path} left out: {reason}")
        failure = {"path": path, "reason": str(reason)}
        if failure not in self.failed:
            self.failed.append(failure)

    def write(self) -> None:
        self.machine["load_at_end"] = [round(value, 2) for value in os.getloadavg()]
        if self.file:
            self.file.write_text(json.dumps({
                "machine": self.machine, "rows": self.rows,
                "comparison": report.compare(self.rows), "failed": self.failed}, indent=1) + "\n")


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[pathlib.Path]:
    """For logs and sockets; short, because a socket's path is limited."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def all_ended(path: Path) -> Iterator[Processes]:
    """The processes of one path; nothing of them is left behind afterwards."""
    with scratch_folder(path.name) as folder:
        processes = Processes(folder)
        try:
            yield processes
        finally:
            processes.stop()
            remove_shared_memory(processes)


def measure(path: Path, tools: pathlib.Path, args: argparse.Namespace, results: Results) -> None:
    say(f"{path.name}: starting")
    try:
        with all_ended(path) as processes:
            launch = Launch(path, processes, tools)
            for row in Fleet(launch, path.start(launch), args).rows():
                results.add(row)
    except BrokenPipeError:  # of our own stdout
        raise
    except (PeerError, OSError) as error:
        results.fail(path.name, error)
    finally:
        results.write()


def measure_peers(args: argparse.Namespace, results: Results) -> None:
    for peer, set_up in SET_UP.items():
        paths = [path for path in PATHS if path.peer == peer and wanted(args, peer, path.name)]
        if not paths:
            continue
        try:
            tools = set_up()
        except (SetupError, OSError) as error:
            results.fail(peer, error)
            continue
        results.machine["versions"][peer] = report.version_of(peer, tools)
        for path in paths:
            measure(path, tools, args, results)


def measure_pagoda(args: argparse.Namespace, results: Results) -> None:
    if not wanted(args, "pagoda"):
        return
    try:
        for row in report.pagoda_rows(args.pagoda, args.sizes, args.clients, args.seconds):
            results.add(row)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        results.fail("pagoda", error)


def print_closing(results: Results) -> None:
    machine = results.machine
    if len(results.rows) < len(results.measured):
        print("\nmedian by GB/s of each cell's turns", report.HEADER, sep="\n")
        print(*map(report.row_text, results.rows), sep="\n")
    versions = "".join(f", {peer} {version}" for peer, version in machine["versions"].items())
    print(f"\n{machine['cpu']}, {machine['cores']} cores, load {machine['load_at_start'][0]} to "
          f"{machine['load_at_end'][0]}, {machine['date']}, {machine['commit']}{versions}")
    if comparison := report.compare(results.rows):
        print("\n" + report.comparison_text(comparison))
    for failure in results.failed:
        print(f"left out: {failure['path']}: {failure['reason']}")


def end_on_signal(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    args = parse_args()
    signal.signal(signal.SIGTERM, end_on_signal)
    signal.signal(signal.SIGHUP, end_on_signal)
    results = Results(args)
    interrupted = False
    try:
        for _ in range(args.turns):
            measure_peers(args, results)
            measure_pagoda(args, results)
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; all servers are ended")
    results.write()
    print_closing(results)
    return 130 if interrupted else 0 if results.rows else 1


if __name__ == "__main__":
    sys.exit(main())
