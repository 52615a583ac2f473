"""Writes dequantize.txt: hashes of what gguf-py's reference makes of pseudo-random weight blocks.

usage: python3 make_dequantize_golden.py        (needs: pip install gguf)

Per tensor type one line: name, elements, SHA-256 of the float32 values (little-endian), and the first
four values as bits in hex. The bytes are SplitMix64(type number), eight bits of each output, with
every float16 and bfloat16 field kept finite: client/worker/dequantize_test.cc makes the same.
"""

import hashlib
import pathlib
import sys

import gguf
import numpy

from splitmix64 import SplitMix64

BLOCKS = 64
# type: (elements of a block, bytes of a block, offsets of 16-bit floats in it)
TYPES = {"F16": (1, 2, [0]), "BF16": (1, 2, [0]), "Q4_0": (32, 18, [0]), "Q4_1": (32, 20, [0, 2]),
         "Q5_0": (32, 22, [0]), "Q5_1": (32, 24, [0, 2]), "Q8_0": (32, 34, [0]),
         "Q6_K": (256, 210, [208])}


def random_blocks(name):
    _, size, floats = TYPES[name]
    random = SplitMix64(gguf.GGMLQuantizationType[name].value)
    data = bytearray()
    for _ in range(BLOCKS):
        block = bytearray(random.next() >> 56 for _ in range(size))
        for offset in floats:
            block[offset + 1] &= 0xBB  # clears an exponent bit of either format: no infinity, no NaN
        data += block
    return numpy.frombuffer(bytes(data), dtype=numpy.uint8)


def main():
    lines = [f"# written by make_dequantize_golden.py with gguf {gguf_version()}: do not edit"]
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        # As in GGUFReader: 16-bit floats come as such, everything else as bytes.
        data = random_blocks(name)
        if name == "F16":
            data = data.view(numpy.float16)
        values = gguf.quants.dequantize(data, kind).astype("<f4").reshape(-1)
        assert len(values) == BLOCKS * TYPES[name][0] and numpy.isfinite(values).all(), name
        digest = hashlib.sha256(values.tobytes()).hexdigest()
        first = " ".join(f"{bits:08x}" for bits in values[:4].view("<u4"))
        lines.append(f"{name} {len(values)} {digest} {first}")
    target = pathlib.Path(__file__).with_name("dequantize.txt")
    target.write_text("\n".join(lines) + "\n")
    print(f"{target}: {len(lines) - 1} types", file=sys.stderr)


def gguf_version():
    import importlib.metadata
    return importlib.metadata.version("gguf")


if __name__ == "__main__":
    main()
