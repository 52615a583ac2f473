#!/usr/bin/env python3
"""Says whether the runs of vllm.sh gave the same outputs, and whether the warm ones were warm."""

import json
import re
import sys


def main():
    folder, count = sys.argv[1], int(sys.argv[2])
    runs = {"off": "off.0", "cold": "on.0", "warm": "on.1", "other": "other.0",
            "async": "async.0", "killed": "killed.0", "absent": "absent.0"}
    outputs, seen = {}, {}
    for name, file in runs.items():
        with open(f"{folder}/{file}", encoding="utf-8") as stream:
            outputs[name] = json.load(stream)
        run, _, number = file.partition(".")
        with open(f"{folder}/{run}.log", encoding="utf-8") as stream:
            text = re.search(rf"^RUN {number} (.*)$", stream.read(), re.MULTILINE)
        seen[name] = json.loads(text.group(1))
    bad = 0
    for name, found in outputs.items():
        differ = [key for key, tokens in outputs["off"].items() if found.get(key) != tokens]
        bad += bool(differ) or len(found) != count
        facts = seen[name]
        print(
            f"{name:7} {len(found)} outputs, {len(differ)} differ; {facts['cached_tokens']} of "
            f"{facts['prompt_tokens']} prompt tokens cached, {facts.get('preemptions', 0)} "
            f"preemptions, {facts.get('aborts', 0)} aborts, {facts['seconds']} s"
        )
        for key in differ[:3]:
            print(f"    {key}: {outputs['off'][key]} without, {found.get(key)} with")
    for name in ("warm", "other", "async"):
        if seen[name]["cached_tokens"] <= seen["off"]["cached_tokens"]:
            bad += 1
            print(f"{name} found no more than the engine alone")
    print("same outputs" if bad == 0 else "FAILED")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
