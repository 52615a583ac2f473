"""A client process of transport.py: one or more clients of one peer. Started by transport.py with
the Python of the peer's environment; by hand it is of no use.

Orders come as JSON lines on stdin, answers go as JSON lines to what was stdout. An object's bytes
follow from its number, so that every client can check what any other pushed.

Names     object N of a size, where N below the count of live objects is one that all clients
          fetch, and others are fresh ones that a client pushes. A call moves `group` objects
          with consecutive names; groups are aligned.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from transport_peers import CLIENTS, FRESH_NAMES, Missing

SETTLE_SECONDS_MAX = 5
STARTS = 1 << 20  # objects begin at so many places of the pattern


class Pattern:
    """Object N is a window of one random block; windows of different objects differ."""

    def __init__(self, bytes_max: int) -> None:
        self.block = memoryview(random.Random(20260101).randbytes(bytes_max + STARTS))

    def of(self, number: int, size: int) -> memoryview:
        start = number * 4093 % STARTS
        return self.block[start:start + size]


class Lane:
    """One client and its part in a measurement."""

    def __init__(self, order: dict[str, Any], index: int, pattern: Pattern) -> None:
        self.client = CLIENTS[order["client"]](order, index)
        self.pattern = pattern
        self.index, self.fresh, self.recent = index, 0, 0
        self.draw = random.Random(index)

    def open(self, size: int, group: int, live: int) -> None:
        self.client.open(size, group)
        self.size, self.group, self.live, self.fresh = size, group, live, 0

    def stage(self) -> None:
        """Fills the slots that fresh objects are pushed from: slot S holds object S."""
        for slot in range(self.client.region.slots):
            self.client.region.slot(slot)[:] = self.pattern.of(slot, self.size)

    def fill(self, begin: int, end: int) -> None:
        """Pushes the live objects of this range of names."""
        for name in range(begin, end, self.group):
            for i in range(self.group):
                self.client.region.slot(i)[:] = self.pattern.of(name + i, self.size)
            self.client.push(name, 0)
        for name in range(max(begin, end - 8 * self.group), end, self.group):
            self.fetch_settled(name)
        self.stage()

    def fresh_push(self) -> None:
        name, slot = self.fresh_at(self.fresh)
        self.client.push(name, slot)
        self.fresh += self.group

    def fresh_at(self, serial: int) -> tuple[int, int]:
        serial %= self.client.fresh_names()
        return (1 << 24) + self.index * FRESH_NAMES + serial, serial % self.client.region.slots

    def random_name(self) -> int:
        return self.draw.randrange(self.live // self.group) * self.group

    def measure(self, op: str, seconds: float, calls_max: int) -> dict[str, Any]:
        call = (lambda: self.client.fetch(self.random_name())) if op == "fetch" else self.fresh_push
        times: list[float] = []
        begin = now = time.perf_counter()  # one clock for all processes
        end = begin + seconds
        while now < end and len(times) < calls_max:
            before = now
            call()
            now = time.perf_counter()
            times.append(now - before)
        self.recent = len(times)
        return {"begin": begin, "end": now, "us": [round(t * 1e6, 1) for t in times]}

    def verify(self, op: str, samples: int) -> int:
        """Compares every byte of some objects; returns how many bytes were compared."""
        for _ in range(samples):
            if op == "fetch":
                name = self.random_name()
                numbers = [name + i for i in range(self.group)]
            else:  # one of the last that were pushed; older ones may have been removed since
                back = self.group * (1 + self.draw.randrange(min(8, self.recent)))
                name, slot = self.fresh_at(self.fresh - back)
                numbers = [slot + i for i in range(self.group)]
            self.compare(name, numbers)
        return samples * self.group * self.size

    def fetch_settled(self, name: int) -> None:
        """LMCache shows a stored chunk to lookups shortly after it has acknowledged it."""
        deadline = time.perf_counter() + SETTLE_SECONDS_MAX
        while True:
            try:
                return self.client.fetch(name)
            except Missing:
                if time.perf_counter() > deadline:
                    raise
                time.sleep(0.01)

    def compare(self, name: int, numbers: list[int]) -> None:
        region = self.client.region
        for i in range(self.group):
            region.landing(i)[:] = bytes(self.size)
        self.fetch_settled(name)
        for i, number in enumerate(numbers):
            if bytes(region.landing(i)) != self.pattern.of(number, self.size):
                raise RuntimeError(f"WRONG BYTES in object {name + i} of {self.size} bytes")


def in_threads(jobs: list[Callable[[], Any]]) -> list[Any]:
    """The results of all jobs, each in a thread of its own; the first failure is raised."""
    results: list[Any] = [None] * len(jobs)
    failures: list[Exception] = []

    def work(index: int) -> None:
        try:
            results[index] = jobs[index]()
        except Exception as error:  # reported to the parent with its text
            failures.append(error)

    if len(jobs) == 1:
        return [jobs[0]()]
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def obey(order: dict[str, Any], lanes: list[Lane]) -> Any:
    """Does one order with the first `clients` of the lanes."""
    active = lanes[:order.get("clients", len(lanes))]
    match order["do"]:
        case "open":
            for lane in lanes:
                lane.open(order["size"], order["group"], order["live"])
        case "fill":
            lanes[0].fill(order["begin"], order["end"])
            for lane in lanes[1:]:
                lane.stage()
        case "measure":
            how = order["op"], order["seconds"], order["calls_max"]
            return in_threads([lambda lane=lane: lane.measure(*how) for lane in active])
        case "verify":
            return sum(lane.verify(order["op"], order["samples"]) for lane in active)
        case "clear":
            lanes[0].client.clear()
    return None


def serve(answers: Any) -> None:
    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    lanes: list[Lane] = []
    try:
        first = json.loads(sys.stdin.readline())
        pattern = Pattern(max(size for _, size in first["groups"]))
        lanes += [Lane(first, first["index"] + i, pattern) for i in range(first["lanes"])]
        answer(result="ready")
        for line in sys.stdin:
            answer(result=obey(json.loads(line), lanes))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        for lane in lanes:
            lane.client.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like; it goes to the log
    serve(answers)


if __name__ == "__main__":
    main()
