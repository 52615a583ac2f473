#!/usr/bin/env python3
"""Runs one vLLM engine over a fixed set of prompts and writes the greedy outputs as JSON.

Shared prefixes, conversations of three turns, requests that are aborted in the middle, and so few
KV blocks that running requests are preempted. What it prints last, as JSON too: tokens that were
cached, preemptions, aborts, seconds; and what the connector counted.

usage: vllm_prompts.py MODEL OUT [--kv JSON] [--prompts N] [--rounds N] [--half COMMAND]
"""

import argparse
import collections
import json
import os
import subprocess
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process: starts in seconds

TOPICS = ["a lighthouse", "a small bakery", "the river Nile", "an old clock", "a paper boat",
          "winter in Norway", "a chess club", "the colour blue", "a night train", "honey bees"]
RULES = (
    "You are the assistant of a small museum. Answer in one short sentence. Be friendly, be exact, "
    "do not invent numbers, and when you do not know something, say so. Visitors ask about rooms, "
    "paintings, opening hours and the cafe. The museum is closed on Mondays. Children under twelve "
    "pay nothing. Photographs are allowed without flash. Dogs wait outside. The cloakroom is free. "
)
ASKS = ["Tell me about {}.", "Write one line about {}.", "What is special about {}?"]


def chat(turns):
    text = "".join(f"<|im_start|>{who}\n{what}<|im_end|>\n" for who, what in turns)
    return text + "<|im_start|>assistant\n"


def watch_counters(counted):
    """Adds up what the connector counts, which it gives to vLLM's loggers otherwise."""
    from pagoda_kv.vllm.stats import Counters

    take = Counters.take

    def taken(self):
        stats = take(self)
        counted.update(stats.data if stats is not None else {})
        return stats

    Counters.take = taken


class Driver:
    def __init__(self, arguments):
        from vllm import LLM, SamplingParams

        kv = {"kv_transfer_config": json.loads(arguments.kv)} if arguments.kv else {}
        self.llm = LLM(
            model=arguments.model, dtype="float32", enforce_eager=True, max_model_len=512,
            max_num_seqs=8, max_num_batched_tokens=256, block_size=32, num_gpu_blocks_override=17,
            enable_prefix_caching=True, disable_log_stats=True, **kv,
        )
        self.parameters = SamplingParams(temperature=0, max_tokens=arguments.tokens)
        self.long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        self.engine = self.llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.seen = collections.Counter()
        preempt = self.scheduler._preempt_request

        def counted(*args, **kwargs):
            self.seen["preemptions"] += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted
        self.counted = collections.Counter()
        if arguments.kv:
            watch_counters(self.counted)

    def run(self, prompts, half=None, aborts=()):
        """prompts: name -> list of (what was said before, question); a list is a conversation."""
        outputs, turns = {}, {name: [] for name in prompts}
        left = {name: list(asks) for name, asks in prompts.items()}
        total, done = sum(map(len, prompts.values())), 0
        waiting = collections.deque(sorted(prompts))
        running: dict[str, str] = {}
        alive: dict[str, int] = {}
        count = 0
        pending_aborts = collections.deque(aborts)
        while waiting or running:
            while waiting and len(running) < 10:
                name = waiting.popleft()
                count += 1
                turns[name].append(("user", left[name].pop(0)))
                request = f"{name}-{len(turns[name])}"
                running[request] = name
                text = chat([("system", RULES), *turns[name]])
                self.engine.add_request(request, {"prompt": text}, self.parameters)
                if count % 7 == 0 and pending_aborts:
                    victim = f"abort-{len(pending_aborts)}"
                    alive[victim] = len(pending_aborts) % 4 * 3  # steps to live
                    self.engine.add_request(
                        victim, {"prompt": chat([("system", RULES + pending_aborts.popleft())])},
                        self.long,
                    )
            for output in self.engine.step():
                if not output.finished or output.request_id not in running:
                    continue
                name = running.pop(output.request_id)
                done += 1
                self.seen["cached_tokens"] += output.num_cached_tokens or 0
                self.seen["prompt_tokens"] += len(output.prompt_token_ids)
                outputs[output.request_id] = list(output.outputs[0].token_ids)
                assert output.outputs[0].finish_reason in ("stop", "length"), output
                turns[name].append(("assistant", output.outputs[0].text))
                if left[name]:
                    waiting.append(name)
                if half and done * 2 >= total:
                    subprocess.run(half, shell=True, check=True)
                    half = None
            for victim in [one for one, steps in alive.items() if steps <= 0]:
                self.engine.abort_request([victim])
                self.seen["aborts"] += 1
                del alive[victim]
            alive = {one: steps - 1 for one, steps in alive.items()}
        while self.engine.has_unfinished_requests():
            self.engine.abort_request(list(alive))
            self.engine.step()
        return outputs


def make_prompts(count):
    """Conversations of three turns for a fifth of them, one turn for the others."""
    prompts, made, index = {}, 0, 0
    while made < count:
        topic = TOPICS[index % len(TOPICS)]
        asks = [ASKS[(index // len(TOPICS) + k) % len(ASKS)].format(topic) for k in range(3)]
        turns = min(3, count - made) if index % 5 == 0 else 1
        prompts[f"p{index:02}"] = asks[:turns]
        made += turns
        index += 1
    return prompts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--kv", default="")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--half", default="", help="command to run when half of them are done")
    arguments = parser.parse_args()
    driver = Driver(arguments)
    aborts = [f" The visitor likes {topic}." for topic in TOPICS[: max(2, arguments.prompts // 8)]]
    for number in range(arguments.rounds):
        driver.seen.clear()
        driver.counted.clear()
        driver.scheduler.reset_prefix_cache()
        began = time.monotonic()
        outputs = driver.run(make_prompts(arguments.prompts), arguments.half, aborts)
        with open(f"{arguments.out}.{number}", "w") as stream:
            json.dump(outputs, stream, sort_keys=True)
        driver.seen["seconds"] = round(time.monotonic() - began, 1)
        driver.seen["outputs"] = len(outputs)
        print("RUN", number, json.dumps(driver.seen, sort_keys=True), flush=True)
        print("COUNTED", number, json.dumps(driver.counted, sort_keys=True), flush=True)
        time.sleep(2)  # pushes that are under way


if __name__ == "__main__":
    main()
