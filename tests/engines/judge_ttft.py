#!/usr/bin/env python3
"""The verdict of vllm_ttft.sh over the MEDIANS of its logs."""

import json
import re
import sys


def main():
    medians = {}
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as stream:
            for text in re.findall(r"^MEDIANS (.*)$", stream.read(), re.MULTILINE):
                found = json.loads(text)
                medians[found["label"]] = found
    for label, row in medians.items():
        text = f"{label:13} cold {row['cold']:.2f} s, "
        if "own" in row:
            text += f"own hit {row['own']:.3f} s ({row['own_cached']:.0f} tokens), "
        print(f"{text}warm {row['warm']:.3f} s ({row['warm_cached']:.0f} tokens)")
    own = medians["pagoda"]
    checks = [
        ("warm / own hit", own["warm"] / own["own"], 1.2),
        ("warm / cold", own["warm"] / own["cold"], 1 / 3),
    ]
    ratio = own["cold_cpu"] / own["off_cpu"]
    if "cold_extra" in own:
        print(f"CPU time of a miss / without connector: {ratio:.3f}, a difference of noisy numbers")
        extra = 1 + own["cold_extra"] / own["off_cpu"]
        checks.append(("CPU time of a miss, its extra work counted", extra, 1.03))
    else:
        checks.append(("CPU time of a miss / without connector", ratio, 1.03))
    if "lmcache" in medians:
        ratio = medians["pagoda-alone"]["warm"] / medians["lmcache"]["warm"]
        checks.append(("warm / LMCache's warm, no prefix cache", ratio, 1.0))
    bad = 0
    for what, ratio, most in checks:
        bad += ratio > most
        print(f"{what}: {ratio:.3f}, at most {most:.2f}{'' if ratio <= most else '   FAILED'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
