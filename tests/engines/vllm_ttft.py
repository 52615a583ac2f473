#!/usr/bin/env python3
"""Time to first token of a prompt of 2,000 tokens in one vLLM engine, seconds of wall and CPU time.

For each of --pairs prompts: off (the connector switched off, another prompt), cold (nobody knows
it), own (the engine's own prefix cache has it), warm (that was emptied: the connector has it). Each
line is one prompt, the last one the medians, as JSON behind MEDIANS. --no-own: the engine has no
prefix cache, for connectors that keep the engine's blocks so that it cannot be emptied.

What a miss costs is a difference of two noisy numbers, so with OMP_NUM_THREADS=1, where the model
has the main thread to itself, it is also counted: cold_extra is the CPU time of all other threads,
beyond what they took without the connector, and of the copies that it makes on the main one.

usage: vllm_ttft.py MODEL --kv JSON [--pairs N] [--tokens N] [--label TEXT] [--no-own]
"""

import argparse
import collections
import json
import os
import statistics
import time

from vllm_prompts import watch_counters

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


class Switch:
    """Takes a connector out of the engine's way, to time the same engine without it."""

    def __init__(self, scheduler):
        self.scheduler, self.connector = scheduler, scheduler.connector

    def off(self):
        from vllm.distributed import kv_transfer

        sides = [self.connector, kv_transfer.get_kv_transfer_group()]
        self.kept = [(one, one._scheduler, one._worker) for one in sides]
        for one in sides:
            one._scheduler = one._worker = None

    def on(self):
        for one, scheduler, worker in self.kept:
            one._scheduler, one._worker = scheduler, worker


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--kv", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--label", default="")
    parser.add_argument("--no-own", action="store_true")
    arguments = parser.parse_args()

    from vllm import LLM, SamplingParams

    llm = LLM(
        model=arguments.model, dtype="float32", enforce_eager=True, max_model_len=4096,
        max_num_seqs=4, block_size=128, max_num_batched_tokens=4096,
        enable_prefix_caching=not arguments.no_own, disable_log_stats=True,
        kv_transfer_config=json.loads(arguments.kv),
    )
    parameters = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    switch = Switch(scheduler) if hasattr(scheduler.connector, "count_error") else None

    def first_token(ids):
        wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        (output,) = llm.generate([{"prompt_token_ids": ids}], parameters, use_tqdm=False)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        others = cpu - (time.thread_time() - own)
        return (wall, cpu, others), output.num_cached_tokens, output.outputs[0].token_ids[0]

    def prompt(number):
        return [100 + (i * 7919 + number * 104729) % 40000 for i in range(arguments.tokens)]

    counted = collections.Counter()
    if switch is not None:
        watch_counters(counted)
    first_token(prompt(999)[:256])
    rows = []
    for number in range(arguments.pairs):
        row, tokens = {}, set()
        if switch is not None:
            switch.off()
            row["off"], row["off_cpu"], idle = first_token(prompt(500 + number))[0]
            switch.on()
        for name in ("cold", "warm") if arguments.no_own else ("cold", "own", "warm"):
            if name == "warm":
                time.sleep(2)  # what is being stored
                if not arguments.no_own:
                    assert scheduler.reset_prefix_cache(), "the prefix cache is in use"
            counted.clear()
            (row[name], row[f"{name}_cpu"], others), cached, token = first_token(prompt(number))
            row[f"{name}_cached"] = cached
            if name == "cold" and switch and os.environ.get("OMP_NUM_THREADS") == "1":
                row["cold_extra"] = others - idle + counted["save_seconds"]
            tokens.add(token)
        assert len(tokens) == 1, f"prompt {number} began {tokens}"
        rows.append(row)
        print(arguments.label, " ".join(f"{k}={v:.3f}" for k, v in row.items()), flush=True)
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print("MEDIANS", json.dumps({"label": arguments.label, **medians}), flush=True)


if __name__ == "__main__":
    main()
