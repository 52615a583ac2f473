#!/usr/bin/env python3
"""Makes replay_trace.csv, a small trace of conversations, and replay_golden.json, what caches hit on it.

The simulators here are as plain as can be (searches through everything, no index but a dict) and share
nothing with storage/replay. They follow the rules of storage/replay/replay.h.

Usage: make_replay_golden.py            writes both files beside itself
"""
import json
import os
from collections import OrderedDict

from splitmix64 import SplitMix64

BLOCK_TOKENS = 64
CONVERSATIONS = 48
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
HERE = os.path.dirname(os.path.abspath(__file__))


def make_trace():
    """Requests (time, tokens, ids). All begin with a system prompt of 200 tokens: 3 full blocks."""
    random = SplitMix64(20261129)
    below = random.below
    next_id = 1000003
    def fresh():
        nonlocal next_id
        next_id += 1 + below(3)
        return next_id
    system = [fresh() for _ in range(3)]
    requests = []
    for _ in range(CONVERSATIONS):
        time, tokens, full = below(3_600_000), 200, list(system)
        for _ in range(1 + below(10)):
            tokens += 20 + below(400)
            while len(full) < tokens // BLOCK_TOKENS:
                full.append(fresh())
            partial = [fresh()] if tokens % BLOCK_TOKENS else []
            requests.append((time, tokens, full + partial))
            time += 15_000 + below(400_000)
    requests.sort(key=lambda r: r[0])
    return requests


class Lru:
    def __init__(self, capacity):
        self.capacity, self.held = capacity, OrderedDict()

    def use(self, block, _next_use):
        self.held[block] = True
        self.held.move_to_end(block)
        if len(self.held) > self.capacity:
            self.held.popitem(last=False)


class Lfu:
    def __init__(self, capacity):
        self.capacity, self.held, self.now = capacity, {}, 0

    def use(self, block, _next_use):
        self.now += 1
        if block not in self.held and len(self.held) >= self.capacity:
            del self.held[min(self.held, key=self.held.get)]
        uses, _ = self.held.get(block, (0, 0))
        self.held[block] = (uses + 1, self.now)


class Belady:
    def __init__(self, capacity):
        self.capacity, self.held = capacity, {}

    def use(self, block, next_use):
        self.held[block] = next_use
        if len(self.held) > self.capacity:
            del self.held[max(self.held, key=self.held.get)]


def next_uses(requests):
    """Per reference (request, depth) of the next use; never: a request beyond the last."""
    last, result = {}, []
    for number in reversed(range(len(requests))):
        ids = requests[number][2]
        result.append([last.get(block, (len(requests), depth)) for depth, block in enumerate(ids)])
        last.update((block, (number, depth)) for depth, block in enumerate(ids))
    return result[::-1]


def replay(requests, nexts, cache, leaf_first):
    halves = []
    counts = dict.fromkeys(("requests", "blocks", "block_hits", "prefix_hits", "tokens", "token_hits"), 0)
    for number, (_, tokens, ids) in enumerate(requests):
        if number == len(requests) // 2:
            halves.append(dict(counts))
        present = [block in cache.held for block in ids]
        prefix = (present + [False]).index(False)
        counts["requests"] += 1
        counts["blocks"] += len(ids)
        counts["block_hits"] += sum(present)
        counts["prefix_hits"] += prefix
        counts["tokens"] += tokens
        counts["token_hits"] += min(prefix * BLOCK_TOKENS, tokens)
        uses = list(zip(ids, nexts[number]))
        for block, next_use in reversed(uses) if leaf_first else uses:
            cache.use(block, next_use)
    return {"whole": counts, "first_half": halves[0]}


def main():
    requests = make_trace()
    with open(os.path.join(HERE, "replay_trace.csv"), "w") as f:
        f.write(f"# block_tokens={BLOCK_TOKENS}\n# Made by make_replay_golden.py\ntime_s,tokens,ids\n")
        for time, tokens, ids in requests:
            f.write(f"{time / 1000},{tokens},{' '.join(map(str, ids))}\n")
    unique = len({block for _, _, ids in requests for block in ids})
    nexts = next_uses(requests)
    policies = {}
    for name, cache, leaf_first in (("lru", Lru, True), ("lru-root-first", Lru, False),
                                    ("lfu", Lfu, False), ("belady", Belady, False)):
        policies[name] = {}
        for share in SHARES:
            capacity = max(1, int(unique * share))
            row = replay(requests, nexts, cache(capacity), leaf_first)
            policies[name][str(share)] = {"capacity_blocks": capacity, **row}
    with open(os.path.join(HERE, "replay_golden.json"), "w") as f:
        json.dump({"requests": len(requests), "unique": unique, "policies": policies}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
