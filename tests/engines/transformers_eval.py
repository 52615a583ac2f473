#!/usr/bin/env python3
"""How far q8 and q4 in a PagodaCache move a model's answers, beside the worker's figures.

usage: transformers_eval.py FOLDER TEXT [--tokens N] [--window N] [--rows q8,q4] [--worker FILE]

FOLDER is a Transformers model (tests/engines/convert_smollm2.py), TEXT a file. Teacher forced in
float32 over the attention "pagoda", paired with all pages raw16, scored from window + 4 on, as
`pagoda eval ppl` does; --worker is its --json output for the same text, which is printed beside:
exit code 1 where the KL here is above 1.2 times that one, beyond twice its standard error.
"""

import argparse
import json
import math
import pathlib
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pagoda_kv import kernels
from pagoda_kv.transformers import PagodaCache, PagodaConfig

SINKS = 4
BLOCK = 128  # positions that count as one sample of the standard error


def read(model, ids, config):
    """Hidden states after the final norm, seconds, and bytes of K and V a token."""
    cache = PagodaCache(model, config)
    start = time.monotonic()
    hidden = model.model(ids, past_key_values=cache).last_hidden_state[0]
    seconds = time.monotonic() - start
    # One token more gives up what no later query reads.
    model.model(ids[:, -1:], past_key_values=cache)
    return hidden, seconds, cache.stored_bytes() / ids.shape[1]


def compare(model, exact, other, targets, first):
    """Mean NLL in % of the exact one's with its standard error, KL of a position, agreement."""
    deltas, nlls, kls, agree = [], [], [], []
    for begin in range(first, len(targets), BLOCK):
        rows = slice(begin, begin + BLOCK)
        a, b = (
            torch.log_softmax(model.lm_head(x[rows]).double(), dim=-1) for x in (exact, other)
        )
        at = targets[rows, None]
        nll_a, nll_b = (-x.gather(1, at)[:, 0] for x in (a, b))
        nlls.append(nll_a)
        deltas.append(nll_b - nll_a)
        kls.append((a.exp() * (a - b)).sum(dim=1))
        agree.append((a.argmax(dim=1) == b.argmax(dim=1)).double())
    whole = [x.mean() for x in deltas if len(x) == BLOCK]
    mean = torch.cat(nlls).mean()
    kl = torch.cat(kls)
    error = torch.stack(whole).std() / math.sqrt(len(whole)) if len(whole) > 1 else torch.zeros(())
    return {
        "nll_percent": 100 * float(torch.cat(deltas).mean() / mean),
        "nll_error_percent": 100 * float(error / mean),
        "kl": float(kl.mean()),
        "kl_error": float(kl.std() / math.sqrt(len(kl))),
        "p99_kl": float(kl.quantile(0.99)),
        "top1": float(torch.cat(agree).mean()),
    }


def worker_rows(path, text):
    """Of `pagoda eval ppl --json`: {precision: (KL, NLL %)}."""
    with open(path, encoding="utf-8") as stream:
        rows = {row["name"]: row for row in json.load(stream)["texts"]}
    row = rows[text]
    return {p: (row[f"{p}_mean_kl"], row[f"{p}_delta_pct"]) for p in ("q8", "q4")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--rows", default="q8,q4")
    parser.add_argument("--worker")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    kernels.set_threads(options.threads)

    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    model = AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=torch.float32, attn_implementation="pagoda"
    ).eval()
    with open(options.text, encoding="utf-8") as stream:
        ids = tokenizer(stream.read(), return_tensors="pt", add_special_tokens=False)["input_ids"]
    if ids.shape[1] < options.tokens:
        raise SystemExit(f"{options.text} has {ids.shape[1]} tokens, {options.tokens} are asked")
    ids = ids[:, : options.tokens]
    inputs, targets = ids[:, :-1], ids[0, 1:]

    # A window that nothing leaves: every page stays raw16, in bfloat16, as the worker's do.
    exact, seconds, size = read(model, inputs, PagodaConfig("q8", window=1 << 24))
    print(f"raw16  {size:8.0f} bytes/token, prefill {seconds:.1f} s")
    worker = worker_rows(options.worker, pathlib.Path(options.text).stem) if options.worker else {}
    worse = []
    for precision in options.rows.split(","):
        config = PagodaConfig(precision, window=options.window)
        hidden, seconds, size = read(model, inputs, config)
        row = compare(model, exact, hidden, targets, options.window + SINKS)
        print(
            f"{precision:6} {size:8.0f} bytes/token, prefill {seconds:.1f} s, "
            f"NLL {row['nll_percent']:+.3f} +- {row['nll_error_percent']:.3f} %, "
            f"KL {1000 * row['kl']:.3f} +- {1000 * row['kl_error']:.3f} e-3, "
            f"p99 {1000 * row['p99_kl']:.1f} e-3, top-1 {100 * row['top1']:.2f} %",
            flush=True,
        )
        if precision in worker:
            kl, nll = worker[precision]
            print(
                f"       the worker: NLL {nll:+.3f} %, KL {1000 * kl:.3f} e-3; "
                f"KL here is {row['kl'] / kl:.2f} of it"
            )
            if row["kl"] > 1.2 * kl + 2 * row["kl_error"]:
                worse.append(precision)
    if worse:
        sys.exit(f"KL of {', '.join(worse)} is above 1.2 times the worker's, beyond its error")


if __name__ == "__main__":
    main()
