#!/usr/bin/env python3
"""Soak: pagodad under steady load for as long as asked; memory, files and counts must stay put.

The load is the crash loop's writer: pushes, aborted pushes, fetches that are verified, prefetches,
flushes, evictions, ladder changes. Budgets are far below what it pushes, so every page also goes down
the ladder, to SSD, back, and away. In the first third the daemon is stopped and started a few times;
then one process lives through the other two, which are compared. Samples go to a CSV file.

Verdict: exit code 0 when everything below holds, 1 otherwise.
  bytes     nobody ever read a wrong byte, nothing failed a checksum
  memory    mean resident memory of the last third <= 1.05 x that of the middle third + 16 MiB
            (48 MiB where the run is shorter than five minutes: it still warms up)
  files     open files and files of the SSD folder likewise; its bytes within what the configuration
            allows (extent files come whole, so that one more or less is no growth)
  balance   at rest: host bytes are what came in less what went out; pages there and pages gone are
            all that ever came; no lease, session or staged byte is left
  restarts  a clean stop ends with code 0, and the start after it finds no page that was not there
"""

import argparse
import csv
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import BIN, Daemon

MIB = 1 << 20
RESTARTS = 3  # in the first third
REST_LIMIT_S = 60
EXTENT_FILE_BYTES = 32 * MIB  # of the configuration's 64 MiB, of which there may be four
SSD_FOLDER_BYTES_MAX = 4 * EXTENT_FILE_BYTES + 32 * MIB  # RocksDB's log and tables beside them
HEADER_BYTES = 4096  # of each of these pages; pagoda_put_bytes_total counts payload alone


def total(metrics, name, *labels):
    return sum(value for key, value in metrics.items()
               if key.split("{")[0] == name and all(label in key for label in labels))


def folder_size(folder):
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:
            pass  # compaction was faster
    return len(sizes), sum(sizes)


class Soak:
    def __init__(self, arguments, folder):
        self.seconds = arguments.minutes * 60
        self.folder = folder
        self.problems = []
        self.samples = []
        self.log = folder / "writer.log"
        self.log.touch()
        subprocess.run([BIN / "crash_loop", "--write-config", folder], check=True)
        self.daemon = Daemon(folder, "data", flags=["--config", folder / "pagodad.yaml"])
        self.writer = None
        self.start = time.monotonic()
        self.seed = arguments.seed
        self.life = 0
        self.pages_at_start = 0
        self.csv_file = open(arguments.csv, "w", newline="", encoding="utf-8")
        self.csv = None

    def expect(self, right, what):
        if not right:
            self.problems.append(what)
            print(f"  PROBLEM {what}", flush=True)

    # ---- Load -----------------------------------------------------------------------------------

    def begin_load(self):
        self.seed += 1
        with open(self.folder / "writer.err", "ab") as log:
            self.writer = subprocess.Popen(
                [BIN / "crash_loop", "--writer", self.daemon.target, "--log", self.log, "--seed",
                 str(self.seed)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def end_load(self):
        self.expect(self.writer.poll() is None, f"the writer ended by itself: {self.writer.poll()}")
        self.writer.kill()
        self.writer.wait()

    def sample(self):
        metrics = self.daemon.metrics()
        files, size = folder_size(self.daemon.data / "ssd")
        row = {
            "seconds": round(time.monotonic() - self.start, 1),
            "life": self.life,
            "rss_bytes": total(metrics, "process_resident_memory_bytes"),
            "open_files": total(metrics, "process_open_fds"),
            "threads": total(metrics, "process_threads"),
            "ssd_files": files,
            "ssd_folder_bytes": size,
            "ssd_used_bytes": total(metrics, "pagoda_tier_used_bytes", 'tier="ssd"'),
            "host_used_bytes": total(metrics, "pagoda_tier_used_bytes", 'tier="host"'),
            "pages": total(metrics, "pagoda_pages"),
            "put_pages": total(metrics, "pagoda_put_pages_total"),
            "hit_pages": total(metrics, "pagoda_lookup_hit_pages_total"),
            "evicted_pages": total(metrics, "pagoda_evicted_pages_total"),
            "promoted_bytes": total(metrics, "pagoda_promoted_bytes_total"),
            "encoded_pages": total(metrics, "pagoda_encoded_pages_total"),
            "leases": total(metrics, "pagoda_leases"),
            "integrity_failures": total(metrics, "pagoda_integrity_failures_total"),
        }
        if self.csv is None:
            self.csv = csv.DictWriter(self.csv_file, row.keys())
            self.csv.writeheader()
        self.csv.writerow(row)
        self.csv_file.flush()
        self.samples.append(row)
        return row

    def load_until(self, until):
        self.begin_load()
        pause = min(5.0, max(0.5, self.seconds / 120))
        shown = 0
        while time.monotonic() - self.start < until:
            if self.daemon.process.poll() is not None:
                self.expect(False, f"pagodad ended by itself: {self.daemon.process.poll()}: "
                                   f"{self.daemon.log()[-2000:]}")
                return False
            row = self.sample()
            if row["seconds"] - shown >= max(5, self.seconds / 30):
                shown = row["seconds"]
                print(f"  {row['seconds']:7.0f} s of {self.seconds:.0f}"
                      f"  rss {row['rss_bytes'] / MIB:6.1f} MiB  files {row['open_files']:3.0f}"
                      f"  ssd folder {row['ssd_folder_bytes'] / MIB:6.1f} MiB"
                      f"  pages {row['pages']:5.0f}  pushed {row['put_pages']:8.0f}", flush=True)
            time.sleep(pause)
        self.end_load()
        return True

    # ---- Rest -----------------------------------------------------------------------------------

    def rest(self):
        """The metrics once nobody works any more, twice the same."""
        until = time.monotonic() + REST_LIMIT_S
        before = None
        while time.monotonic() < until:
            metrics = self.daemon.metrics()
            busy = sum(total(metrics, name) for name in (
                "pagoda_sessions", "pagoda_leases", "pagoda_staged_bytes", "pagoda_sequences",
                "pagoda_encode_queue_pages", "pagoda_ssd_write_queue_pages",
                "pagoda_ssd_unflushed_pages"))
            now = {key: value for key, value in metrics.items()
                   if key.startswith("pagoda_") and "rpc" not in key}
            if busy == 0 and now == before:
                return metrics
            before = now
            time.sleep(0.3)
        self.expect(False, "not at rest: " + ", ".join(
            f"{key}={value:g}" for key, value in self.daemon.metrics().items()
            if value and key.startswith(("pagoda_sessions", "pagoda_leases", "pagoda_staged",
                                         "pagoda_sequences", "pagoda_ssd_w", "pagoda_encode_q"))))
        return self.daemon.metrics()

    def balance(self):
        metrics = self.rest()
        host = total(metrics, "pagoda_tier_used_bytes", 'tier="host"')
        came = (total(metrics, "pagoda_put_bytes_total") +
                HEADER_BYTES * total(metrics, "pagoda_put_pages_total", 'result="stored"') +
                total(metrics, "pagoda_promoted_bytes_total"))
        went = (total(metrics, "pagoda_evicted_bytes_total", 'tier="host"') +
                total(metrics, "pagoda_shed_bytes_total"))
        self.expect(came - went == host,
                    f"host bytes: {came:.0f} came, {went:.0f} went, {host:.0f} are there "
                    f"(off by {came - went - host:.0f})")
        pages = total(metrics, "pagoda_pages")
        in_host = total(metrics, "pagoda_tier_pages", 'tier="host"')
        on_ssd = total(metrics, "pagoda_tier_pages", 'tier="ssd"')
        self.expect(max(in_host, on_ssd) <= pages <= in_host + on_ssd,
                    f"pages: {pages:.0f} in all, {in_host:.0f} in host, {on_ssd:.0f} on ssd")
        stored = total(metrics, "pagoda_put_pages_total", 'result="stored"')
        gone = self.pages_at_start + stored - pages
        evicted = total(metrics, "pagoda_evicted_pages_total")
        self.expect(0 <= gone <= evicted,
                    f"pages: {self.pages_at_start:.0f} at start and {stored:.0f} stored, "
                    f"{pages:.0f} there, so {gone:.0f} gone; {evicted:.0f} evictions counted")
        self.expect(total(metrics, "pagoda_integrity_failures_total") == 0,
                    "bytes failed a checksum, and nobody damaged them")
        return pages

    def restart(self, pages):
        code = self.daemon.terminate()
        self.expect(code == 0, f"exit code {code} after a clean stop")
        self.daemon.start()
        self.life += 1
        self.pages_at_start = total(self.daemon.metrics(), "pagoda_pages")
        self.expect(self.pages_at_start <= pages,
                    f"{pages:.0f} pages before the stop, {self.pages_at_start:.0f} after it")

    # ---- The whole ------------------------------------------------------------------------------

    def run(self):
        for i in range(RESTARTS):
            if not self.load_until(self.seconds / 3 * (i + 1) / RESTARTS):
                return
            self.restart(self.balance())
        if not self.load_until(self.seconds):
            return
        self.restart(self.balance())
        self.balance()

    def compare(self):
        middle = [s for s in self.samples if self.seconds / 3 <= s["seconds"] < self.seconds * 2 / 3]
        last = [s for s in self.samples if s["seconds"] >= self.seconds * 2 / 3]
        if not middle or not last:
            return self.expect(False, "too few samples to compare")
        # The process takes some minutes to have touched all that it keeps.
        rss_slack = (16 if self.seconds >= 300 else 48) * MIB
        print("                      middle third   last third")
        for name, slack in (("rss_bytes", rss_slack), ("open_files", 16), ("ssd_files", 16),
                            ("ssd_folder_bytes", EXTENT_FILE_BYTES + 16 * MIB), ("threads", 4)):
            before = sum(s[name] for s in middle) / len(middle)
            after = sum(s[name] for s in last) / len(last)
            print(f"  {name:18s} {before:14.0f} {after:12.0f}")
            self.expect(after <= 1.05 * before + slack,
                        f"{name} grows: {before:.0f} in the middle third, {after:.0f} in the last")
        most = max(s["ssd_folder_bytes"] for s in self.samples)
        self.expect(most <= SSD_FOLDER_BYTES_MAX,
                    f"ssd folder of {most} bytes, at most {SSD_FOLDER_BYTES_MAX} expected")
        return None

    def close(self):
        if self.writer is not None and self.writer.poll() is None:
            self.writer.kill()
            self.writer.wait()
        self.daemon.kill()
        self.csv_file.close()


def main():
    parser = argparse.ArgumentParser(description="Soak pagodad; see the file's first lines.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", default="soak.csv", help="where the samples go (default soak.csv)")
    arguments = parser.parse_args()
    if arguments.minutes < 0.25:
        parser.error("--minutes: at least 0.25, so that thirds can be compared")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pagoda-soak-"))
    soak = Soak(arguments, folder)
    print(f"soak: {arguments.minutes:g} minutes, seed {arguments.seed}, samples in {arguments.csv}",
          flush=True)
    try:
        soak.run()
        soak.compare()
        wrong = [line for line in open(soak.log, errors="replace") if line.startswith("wrong")]
        soak.expect(not wrong, f"{len(wrong)} wrong pages: {wrong[:3]}")
        pushed = sum(1 for line in open(soak.log, errors="replace") if line.startswith("stored"))
        soak.expect(pushed > 0, "nothing was pushed")
    finally:
        soak.close()
        shutil.rmtree(folder, ignore_errors=True)
    hits = max((s["hit_pages"] for s in soak.samples), default=0)
    print(f"pushes acknowledged {pushed}, pages found in the last life {hits:.0f}, "
          f"samples {len(soak.samples)}")
    print(f"verdict: {'steady' if not soak.problems else f'{len(soak.problems)} problems'}")
    return 1 if soak.problems else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
