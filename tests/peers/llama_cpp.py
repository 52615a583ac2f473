#!/usr/bin/env python3
"""The worker beside llama.cpp: same model, same threads, matching types of the KV cache.

What a cache of N tokens costs each new token is the time of a token at N tokens of context minus
that at 64: weights, sampling and overhead cancel, attention over the cache is left. Prefill and
decode in tokens a second are printed too, whatever they are.

Needs     an idle machine; the release build; llama.cpp from the wheel `xllamacpp`:
            python3 -m venv venv && venv/bin/pip install xllamacpp
            venv/bin/python tests/peers/llama_cpp.py --threads 1,2
Pairs     raw16 = f16, with flash attention and without; q8 = q8_0 and q4 = q4_0, which need it.
          llama.cpp quantizes every token, the worker all but a window of 128.
Method    for each pair llama.cpp and the worker one after the other; of decode medians of --rounds
          runs of 32 tokens, of prefill one run. llama.cpp keeps the prompt between its runs. The instruction sets are those
          that each picks: the wheel knows AVX2, the worker's attention AVX-512 too (--isa avx2).
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIRS = [  # precision, llama.cpp's type, flash attention
    ("raw16", "F16", False),
    ("raw16", "F16", True),
    ("q8", "Q8_0", True),
    ("q4", "Q4_0", True),
]
SHORT_TOKENS = 64
NEW_TOKENS = 32


def parse_args():
    cache = os.environ.get("PAGODA_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pagoda")
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="FILE",
                        default=os.path.join(cache, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--bench", metavar="FILE", default=str(ROOT / "build/release/bin/forward_bench"))
    parser.add_argument("--tokens", type=int, default=4096, metavar="N", help="of the long context")
    parser.add_argument("--threads", default="1,2", metavar="N,...")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--isa", default="", metavar="NAME", help="of the worker's attention")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    args = parser.parse_args()
    for path in (args.model, args.bench):
        if not os.path.exists(path):
            sys.exit(f"llama_cpp.py: no file {path}; see deploy/quickstart.sh")
    return args


def llama_times(xllamacpp, args, kind, flash, threads):
    """Milliseconds a token at the short and the long context, and prefill tokens/s of the long."""
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx = args.tokens + 256
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + kind)
    modes = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (modes.LLAMA_FLASH_ATTN_TYPE_ENABLED
                              if flash else modes.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    params.verbosity = -1
    server = xllamacpp.Server(params)
    draw = random.Random(1)
    ids = [draw.randrange(100, 40000) for _ in range(args.tokens)]
    decode = {}
    prefill = 0.0
    for count in (args.tokens, SHORT_TOKENS):
        runs = []
        for turn in range(args.rounds + 1):
            answer = server.handle_completions(
                dict(prompt=ids[:count], n_predict=NEW_TOKENS, temperature=0, cache_prompt=True,
                     ignore_eos=True))
            answer = json.loads(answer) if isinstance(answer, str) else answer
            timings = answer["timings"]
            if turn == 0:  # fills the cache
                if count == args.tokens:
                    prefill = timings["prompt_per_second"]
                continue
            runs.append(timings["predicted_ms"] / timings["predicted_n"])
        decode[count] = statistics.median(runs)
    del server
    return decode[SHORT_TOKENS], decode[args.tokens], prefill


def bench(args, precision, threads, tokens, name, repetitions):
    command = [args.bench, "--model", args.model, "--threads", str(threads), "--tokens", str(tokens),
               "--precision", precision, "--window", "128", f"--benchmark_filter={name}",
               f"--benchmark_repetitions={repetitions}", "--benchmark_format=json"]
    if name == "decode":
        command.append("--benchmark_min_time=0.5")
    if args.isa:
        command += ["--isa", args.isa]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, timeout=600).stdout)
    runs = [row for row in result["benchmarks"] if row["run_type"] == "iteration"]
    return statistics.median(1e3 / row["tokens_per_s"] for row in runs)  # milliseconds a token


def worker_times(args, precision, threads):
    short, long = (bench(args, precision, threads, tokens, "decode", args.rounds)
                   for tokens in (SHORT_TOKENS, args.tokens))
    prefill = bench(args, precision, threads, args.tokens, "prefill", 1)
    return short, long, 1e3 / prefill


def main():
    args = parse_args()
    try:
        import xllamacpp
    except ImportError:
        sys.exit("llama_cpp.py: no module xllamacpp; install it into the Python that runs this: "
                 "pip install xllamacpp")
    print(f"{'threads':>7}  {'precision':9}  {'llama.cpp':12}  "
          f"{'cache ms/token':>21}  {'':>5}  {'decode tokens/s':>21}  {'prefill tokens/s':>21}")
    print(f"{'':>7}  {'':9}  {'':12}  {'ours':>10} {'llama.cpp':>10}  {'ratio':>5}  "
          f"{'ours':>10} {'llama.cpp':>10}  {'ours':>10} {'llama.cpp':>10}")
    rows = []
    for threads in (int(word) for word in args.threads.split(",")):
        for precision, kind, flash in PAIRS:
            theirs = llama_times(xllamacpp, args, kind, flash, threads)
            ours = worker_times(args, precision, threads)
            row = dict(threads=threads, precision=precision, llama_cpp=kind.lower() + ("+fa" if flash else ""),
                       tokens=args.tokens, cache_ms=ours[1] - ours[0], llama_cpp_cache_ms=theirs[1] - theirs[0],
                       decode_tps=1e3 / ours[1], llama_cpp_decode_tps=1e3 / theirs[1],
                       prefill_tps=ours[2], llama_cpp_prefill_tps=theirs[2])
            rows.append(row)
            print(f"{threads:7}  {precision:9}  {row['llama_cpp']:12}  {row['cache_ms']:10.2f} "
                  f"{row['llama_cpp_cache_ms']:10.2f}  {row['cache_ms'] / row['llama_cpp_cache_ms']:5.2f}  "
                  f"{row['decode_tps']:10.1f} {row['llama_cpp_decode_tps']:10.1f}  "
                  f"{row['prefill_tps']:10.0f} {row['llama_cpp_prefill_tps']:10.0f}", flush=True)
            if args.json:
                pathlib.Path(args.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
