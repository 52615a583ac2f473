"""Writes lab_codecs.txt: what the rules of client/lab/kv_codec.h make of one pseudo-random tile.

usage: python3 make_lab_codecs_golden.py        (needs nothing but Python)

Plain Python in double, from the published rules, without a look at our C++. Per codec and tensor one
line: codec, K or V, relative square error, and the values at (token 5 i, channel 7 i), i = 0..7.
The tile has 128 tokens of 64 channels: client/lab/kv_codec_test.cc makes the same from SplitMix64.
"""

import math
import pathlib
import struct
import sys

from splitmix64 import SplitMix64

DIM, TOKENS, PAGE = 64, 128, 64
SIGNS = 0x70566427AD8ACC64  # of kernels/hadamard.h, channels 0 to 63


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def tile(seed):
    """Channel 3 of every 17 is loud, every channel has a mean, every eighth token is quiet."""
    random = SplitMix64(seed)
    rows = []
    for token in range(TOKENS):
        row = []
        for channel in range(DIM):
            x = ((random.next() >> 40) - (1 << 23)) / (1 << 21)
            x *= (4 if channel % 17 == 3 else 1) * (0.25 if token % 8 == 7 else 1)
            row.append(f32(x + (channel * 7 % 13 - 6) / 2))
        rows.append(row)
    return rows


# ---- groups

def q8_0(x):
    step = max(abs(v) for v in x) / 127
    return [math.floor(abs(v) / step + 0.5) * math.copysign(1, v) * f16(step) for v in x]


def q4_0(x):
    step = max(x, key=abs) / -8
    return [(min(15, math.floor(v / step + 8.5)) - 8) * f16(step) for v in x]


def affine(bits, store):
    def code(x):
        top = (1 << bits) - 1
        zero = store(min(x))
        scale = store((max(x) - zero) / top)
        return [min(top, max(0, round((v - zero) / scale))) * scale + zero for v in x]
    return code


def prefix(bits, rule):
    def code(x):
        step = max(abs(v) for v in x) / 127.5
        codes = [min(127, max(-128, math.floor(v / step))) for v in x]
        levels = [(c >> (8 - bits)) + 0.5 for c in codes]
        yl = sum(v * l for v, l in zip(x, levels))
        if rule == "unbiased":
            scale = sum(v * v for v in x) / yl
        else:
            scale = yl / sum(l * l for l in levels)
        scale = f16(16 * scale) / 16 if bits == 8 else f16(scale)
        return [l * scale for l in levels]
    return code


# ---- which numbers form a group; rows are lists of tokens

def per_token(size, code):
    return lambda rows: [sum((code(r[i:i + size]) for i in range(0, DIM, size)), []) for r in rows]


def transposed(rows):
    return [list(column) for column in zip(*rows)]


def per_channel(code):
    return lambda rows: transposed([code(column) for column in transposed(rows)])


def pages(code):
    return lambda rows: sum((code(rows[i:i + PAGE]) for i in range(0, TOKENS, PAGE)), [])


def std(x):
    mean = sum(x) / len(x)
    return min(1e3, max(1e-3, math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))))


def kvarn(bits, by_channel):
    def code(rows):
        x = transposed(rows) if by_channel else rows
        rms = math.sqrt(sum(v * v for r in x for v in r) / (len(x) * len(x[0])))
        x = [[v / rms for v in r] for r in x]
        lr, lc = [0.0] * len(x), [0.0] * len(x[0])

        def scaled(lr, lc):
            return [[v / math.exp(a) / math.exp(b) for v, b in zip(r, lc)] for r, a in zip(x, lr)]

        def imbalance(m):
            s, t = [std(c) for c in transposed(m)], [std(r) for r in m]
            return max(s) / min(s) + max(t) / min(t)

        def step(logs, stds):
            return [min(10, max(-0.3, a + math.log(s))) for a, s in zip(logs, stds)]

        best, best_imbalance = (lr, lc), imbalance(x)
        for _ in range(8):
            lc = step(lc, [std(c) for c in transposed(scaled(lr, lc))])
            lr = step(lr, [std(r) for r in scaled(lr, lc)])
            now = imbalance(scaled(lr, lc))
            if now <= best_imbalance:
                best, best_imbalance = (lr, lc), now
        lr, lc = best
        out = []
        for r, a in zip(scaled(lr, lc), lr):
            zero, top = min(r), (1 << bits) - 1
            width = (max(r) - zero) / top
            lift = math.exp(a) * rms
            out.append([(min(top, max(0, round((v - zero) / width))) * f16(width * lift)
                         + f16(zero * lift)) * f16(math.exp(b)) for v, b in zip(r, lc)])
        return transposed(out) if by_channel else out
    return code


# ---- frames

def hadamard(row):
    return [sum(v * (-1) ** bin(i & j).count("1") for j, v in enumerate(row)) / math.sqrt(DIM)
            for i in range(DIM)]


def in_hadamard(code):
    return lambda rows: [hadamard(r) for r in code([hadamard(r) for r in rows])]


def interleaved(code):
    order = [i // 2 + i % 2 * (DIM // 2) for i in range(DIM)]

    def frame(rows):
        out = []
        for r in code([[row[i] for i in order] for row in rows]):
            back = [0.0] * DIM
            for at, i in enumerate(order):
                back[i] = r[at]
            out.append(back)
        return out
    return frame


def product(centred, code):
    flip = [-1 if SIGNS >> c & 1 else 1 for c in range(DIM)]

    def frame(rows):
        y = [hadamard([v * s for v, s in zip(r, flip)]) for r in rows]
        mean = [f16(sum(c) / len(rows)) if centred else 0.0 for c in transposed(y)]
        y = code([[v - m for v, m in zip(r, mean)] for r in y])
        y = [hadamard([v + m for v, m in zip(r, mean)]) for r in y]
        return [[v * s for v, s in zip(r, flip)] for r in y]
    return frame


def codecs():
    for bits, rule in ((8, q8_0), (4, q4_0)):
        plain = per_token(32, rule)
        yield f"q{bits}_0", interleaved(plain), plain
        yield f"q{bits}_0+H", in_hadamard(plain), in_hadamard(plain)
    for bits in (4, 2):
        yield (f"kivi{bits}", pages(per_channel(affine(bits, f16))),
               per_token(64, affine(bits, f16)))
    yield "hf4", per_token(64, affine(4, bf16)), per_token(64, affine(4, bf16))
    for k, v in (8, 8), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2):
        yield (f"e{k}{v}", pages(product(True, per_token(64, prefix(k, "unbiased")))),
               product(False, per_token(64, prefix(v, "least squares"))))
    yield "kvarn2", product(False, kvarn(2, True)), product(False, kvarn(2, False))


def line(name, tensor, code, rows):
    out = code(rows)
    error = sum((a - b) ** 2 for r, o in zip(rows, out) for a, b in zip(r, o))
    energy = sum(v * v for r in rows for v in r)
    samples = " ".join(f"{out[5 * i][7 * i]:.9g}" for i in range(8))
    return f"{name} {tensor} {error / energy:.9g} {samples}"


def main():
    k, v = tile(1), tile(2)
    lines = ["# written by make_lab_codecs_golden.py: do not edit"]
    for name, of_k, of_v in codecs():
        lines += [line(name, "K", of_k, k), line(name, "V", of_v, v)]
    target = pathlib.Path(__file__).with_name("lab_codecs.txt")
    target.write_text("\n".join(lines) + "\n")
    print(f"{target}: {len(lines) - 1} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
