"""What transport.py says: rows as a table and as JSON, the machine, and Pagoda beside its peers."""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import tempfile
from typing import Any

from transport_servers import CORES
from transport_setup import HERE, say

Row = dict[str, Any]
PAGODA_SECONDS_MAX = 900
PAGODA_ATTEMPTS = 2
PAGODA_ROUNDS = 5
PAGODA_BYTES_MIN = 64 << 10
SHM_PEERS = ["lmcache-shm", "lmcache-shm-engine", "mooncake-shm", "mooncake-local"]
# Pagoda's path -> the peers' paths of the same kind: memory with memory, sockets with sockets.
RIVALS = {
    "shm-map": SHM_PEERS,
    "shm-copy": SHM_PEERS,
    "grpc-unix": ["redis-unix"],
    "grpc-tcp": ["redis-tcp", "lmcache-tcp", "mooncake-tcp"],
}


def percentile(values: list[float], share: float) -> float:
    """Of sorted values: the smallest that at least this share of them does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def make_row(path: str, op: str, size: int, clients: int, group: int, kind: str,
             parts: list[dict[str, Any]]) -> Row:
    times = sorted(time for part in parts for time in part["us"])
    seconds = max(part["end"] for part in parts) - min(part["begin"] for part in parts)
    return {
        "path": path, "op": op, "bytes": size, "clients": clients, "batch": group,
        "p50_us": percentile(times, 0.5), "p99_us": percentile(times, 0.99),
        "p999_us": percentile(times, 0.999),
        "gbps": round(len(times) * size * group / seconds / 1e9, 4),
        "calls": len(times), "clients_are": kind, "load": round(os.getloadavg()[0], 2),
    }


def median_rows(measured: list[Row]) -> list[Row]:
    """One row per cell: of a cell measured in several turns the one with the median GB/s."""
    cells: dict[tuple, list[Row]] = {}
    for row in measured:
        key = (row["path"], row["op"], row["bytes"], row["clients"], row.get("batch", 1))
        cells.setdefault(key, []).append(row)
    return [sorted(rows, key=lambda row: row["gbps"])[(len(rows) - 1) // 2]
            for rows in cells.values()]


HEADER = (f"{'path':18}  {'op':5}  {'object':>7}  {'clients':>7}  {'batch':>5}  "
          f"{'p50 us':>9}  {'p99 us':>9}  {'p99.9 us':>9}  {'GB/s':>7}")


def size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 and size % (1 << 20) == 0 else f"{size >> 10} KiB"


def row_text(row: Row) -> str:
    return (f"{row['path']:18}  {row['op']:5}  {size_text(row['bytes']):>7}  {row['clients']:7}  "
            f"{row.get('batch', 1):5}  {row['p50_us']:9.1f}  {row['p99_us']:9.1f}  "
            f"{row['p999_us']:9.1f}  {row['gbps']:7.3f}")


def cpu_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return match.group(1) if match else platform.machine()


def first_line(command: list[str], executable: str | None = None) -> str:
    try:
        done = subprocess.run(command, executable=executable, capture_output=True, text=True,
                              timeout=20)
        return done.stdout.strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "unknown"


def pinned(peer: str, package: str) -> str:
    text = (HERE / f"{peer}_requirements.txt").read_text()
    return re.search(rf"^{package}==(.+)$", text, re.M).group(1)


def version_of(peer: str, tools: pathlib.Path) -> str:
    if peer == "redis":
        found = re.search(r"v=(\S+)", first_line(["redis-server", "--version"], str(tools)))
        return found.group(1) if found else "unknown"
    if peer == "lmcache":
        return f"{pinned(peer, 'lmcache')} (torch {pinned(peer, 'torch')}, on the CPU)"
    return pinned(peer, "mooncake-transfer-engine-non-cuda")


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": cpu_name(), "cores": CORES, "kernel": platform.release(),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": first_line(["git", "-C", str(HERE), "-c", "safe.directory=*", "describe",
                              "--always", "--dirty"]),
        "load_at_start": [round(value, 2) for value in os.getloadavg()],
    }


def has_transport(pagoda: pathlib.Path) -> bool:
    """`pagoda bench transport --help` answers even where there is none, with bench's help."""
    try:
        done = subprocess.run([str(pagoda), "bench", "--help"], capture_output=True, text=True,
                              timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(r"^\s+transport\b", done.stdout, re.M) is not None


def pagoda_command(pagoda: pathlib.Path, sizes: list[int], clients: list[int], seconds: float,
                   file: pathlib.Path) -> list[str]:
    """Each of Pagoda's cells is measured in rounds, in which its paths take turns."""
    mine = [size for size in sizes if size >= PAGODA_BYTES_MIN]
    if not mine:
        raise RuntimeError(f"its objects have at least {PAGODA_BYTES_MIN} bytes")
    return [str(pagoda), "bench", "transport", "--bytes", ",".join(map(str, mine)),
            "--clients", ",".join(map(str, clients)), "--rounds", str(PAGODA_ROUNDS),
            "--slice-ms", str(max(1, round(seconds * 1000 / PAGODA_ROUNDS))), "--json", str(file)]


def run_pagoda(command: list[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=PAGODA_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {PAGODA_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")


def pagoda_rows(pagoda: pathlib.Path, sizes: list[int], clients: list[int],
                seconds: float) -> list[Row]:
    """The rows of `pagoda bench transport`; raises RuntimeError with a reason where it gave none."""
    if not pagoda.exists():
        raise RuntimeError(f"no file {pagoda} (cmake --build --preset release)")
    if not has_transport(pagoda):
        raise RuntimeError(f"{pagoda} has no `bench transport`; build it anew")
    with tempfile.TemporaryDirectory(prefix="pagoda-transport-") as folder:
        file = pathlib.Path(folder, "pagoda.json")
        command = pagoda_command(pagoda, sizes, clients, seconds, file)
        for attempts_left in range(PAGODA_ATTEMPTS - 1, -1, -1):
            say(" ".join(command))
            try:
                run_pagoda(command)
                break
            except RuntimeError as error:  # on a busy machine a connection may come too late
                if attempts_left == 0:
                    raise
                say(f"pagoda: {error}; once more")
        return json.loads(file.read_text())["rows"]


def single_rows(rows: list[Row]) -> dict[tuple, Row]:
    """(path, op, bytes, clients) -> row; calls that move one object, as Pagoda's do."""
    return {(row["path"], row["op"], row["bytes"], row["clients"]): row
            for row in rows if row.get("batch", 1) == 1}


def compare(rows: list[Row]) -> list[dict[str, Any]]:
    by_key = single_rows(rows)
    found = []
    for (path, op, size, clients), ours in by_key.items():
        for rival in RIVALS.get(path, []):
            theirs = by_key.get((rival, op, size, clients))
            if theirs and theirs["gbps"] > 0 and ours["p50_us"] > 0:
                found.append({"pagoda": path, "peer": rival, "op": op, "bytes": size,
                              "clients": clients, "gbps_ratio": round(ours["gbps"] / theirs["gbps"], 2),
                              "p50_ratio": round(theirs["p50_us"] / ours["p50_us"], 2)})
    return found


def comparison_text(comparison: list[dict[str, Any]]) -> str:
    lines = ["Pagoda against peers: how many times their GB/s, and in brackets how many times "
             "sooner the median call is done"]
    for path in dict.fromkeys(entry["pagoda"] for entry in comparison):
        mine = [entry for entry in comparison if entry["pagoda"] == path]
        peers = list(dict.fromkeys(entry["peer"] for entry in mine))
        lines += ["", f"{path:10}  {'object':>7}  {'clients':>7}"
                  + "".join(f"  {peer:>20}" for peer in peers)]
        for op, size, clients in dict.fromkeys((e["op"], e["bytes"], e["clients"]) for e in mine):
            cells = {e["peer"]: f"{e['gbps_ratio']:.2f} ({e['p50_ratio']:.2f})" for e in mine
                     if (e["op"], e["bytes"], e["clients"]) == (op, size, clients)}
            lines.append(f"{op:10}  {size_text(size):>7}  {clients:7}"
                         + "".join(f"  {cells.get(peer, '-'):>20}" for peer in peers))
    return "\n".join(lines)
