"""A name for a model's weights: the same bytes give the same name on every machine.

A folder is known by all of its small files that shape the model, and of each weight file by its
size, its header and samples of its bytes: 17 of 4 KiB, the first and last ones among them. That is
no checksum of all bytes, which would take minutes; weights that differ only between the samples and
keep every header are told apart by `weights_revision` alone.
"""

import hashlib
import os
import struct

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIG_FILES = (
    "config.json", "quantize_config.json", "hf_quant_config.json", "params.json",
    "adapter_config.json",
)
SAMPLES = 17
SAMPLE_BYTES = 4096
HEADER_BYTES_MAX = 64 << 20


def fingerprint(folder: str) -> str:
    """16 hex digits. Raises OSError where the folder cannot be read."""
    digest = hashlib.sha256(b"pagoda/weights/v1")
    names = sorted(os.listdir(folder))
    weights = [name for name in names if name.endswith(WEIGHT_SUFFIXES)]
    if not weights:
        raise FileNotFoundError(f"{folder} has no weight files ({', '.join(WEIGHT_SUFFIXES)})")
    for name in names:
        if name in CONFIG_FILES:
            with open(os.path.join(folder, name), "rb") as stream:
                _add(digest, name.encode(), stream.read())
    for name in weights:
        with open(os.path.join(folder, name), "rb") as stream:
            _add(digest, name.encode(), *_parts(stream, name))
    return digest.hexdigest()[:16]


def _parts(stream, name: str):
    size = os.fstat(stream.fileno()).st_size
    yield struct.pack("<Q", size)
    if name.endswith(".safetensors") and size >= 8:
        length = struct.unpack("<Q", stream.read(8))[0]  # names, types and places of all tensors
        yield stream.read(min(length, HEADER_BYTES_MAX))
    for sample in range(SAMPLES):
        stream.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
        yield stream.read(SAMPLE_BYTES)


def _add(digest, *parts: bytes) -> None:
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
