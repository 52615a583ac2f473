#!/usr/bin/env python3
"""The peers' table of the README: stores beside Pagoda, and vLLM on top of them.

Runs, one after the other, with nothing else on the machine to be fair:
  tests/peers/transport.py     put and get of the same objects, 64 KiB to 4 MiB, one client
  tests/engines/vllm_ttft.sh   time to first token of vLLM: none, its own prefix cache, Pagoda, LMCache
and prints the first as a Markdown table, the second as it comes. The first run sets the peers and vLLM up (5 GB, about ten minutes);
after that it takes about fifteen minutes on two cores.

Of the store's table each cell is GB/s (p99 in us), medians of the turns.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {64 << 10: "64 KiB", 256 << 10: "256 KiB", 1 << 20: "1 MiB", 4 << 20: "4 MiB"}
PATHS = {
    "shm-map": "Pagoda, shared memory, mapped",
    "shm-copy": "Pagoda, shared memory, copied",
    "lmcache-shm": "LMCache MP server, shared memory",
    "lmcache-shm-engine": "LMCache MP server, engine-driven",
    "mooncake-shm": "Mooncake Store, shared memory",
    "mooncake-local": "Mooncake Store, in the client's process",
    "grpc-unix": "Pagoda, gRPC, Unix socket",
    "redis-unix": "Redis, Unix socket",
    "grpc-tcp": "Pagoda, gRPC, TCP",
    "redis-tcp": "Redis, TCP",
    "lmcache-tcp": "LMCache server, TCP",
    "mooncake-tcp": "Mooncake Store, TCP",
}


def store_table(rows: list[dict[str, Any]]) -> list[str]:
    cells = {(row["path"], row["op"], row["bytes"]): row for row in rows
             if row["clients"] == 1 and row.get("batch", 1) == 1}
    lines = ["| store | " + " | ".join(f"put {name}" for name in SIZES.values()) + " | "
             + " | ".join(f"get {name}" for name in SIZES.values()) + " |",
             "| --- |" + " --- |" * (2 * len(SIZES))]
    for path, name in PATHS.items():
        texts = []
        for op in ("push", "fetch"):
            for size in SIZES:
                row = cells.get((path, op, size))
                texts.append(f"{row['gbps']:.2f} ({row['p99_us']:,.0f})" if row else "-")
        if any(text != "-" for text in texts):
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return lines


def run(command: list[str]) -> None:
    print("$ " + " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="of the stores, each path once a turn")
    parser.add_argument("--only", choices=["stores", "vllm"], help="one of the two tables")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/peers",
                        help="folder for the JSON files; default: build/peers")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only != "vllm":
        stores = args.out / "stores.json"
        run([sys.executable, "tests/peers/transport.py", "--sizes", ",".join(map(str, SIZES)),
             "--clients", "1", "--batch", "1", "--seconds", "0.3", "--turns", str(args.turns),
             "--json", str(stores)])
        results = json.loads(stores.read_text())
        machine = results["machine"]
        print(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_at_start'][0]} to "
              f"{machine['load_at_end'][0]}, {machine['date']}\n")
        print("\n".join(store_table(results["rows"])))
        for failure in results["failed"]:
            print(f"left out: {failure['path']}: {failure['reason']}")
        print()
    if args.only != "stores":
        # Its exit code is a verdict; here its figures count.
        print("$ tests/engines/vllm_ttft.sh", file=sys.stderr, flush=True)
        done = subprocess.run(["bash", "tests/engines/vllm_ttft.sh"], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, check=False)
        print("```\n" + done.stdout.rstrip() + "\n```")
        if done.returncode not in (0, 1):
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
