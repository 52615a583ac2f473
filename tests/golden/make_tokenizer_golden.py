"""Writes tokenizer.txt: the ids that Hugging Face's tokenizers library gives.

usage: python3 make_tokenizer_golden.py GGUF        (needs: pip install tokenizers gguf jinja2)

Lines of the file:
  text parsed IDS...      tokenizer_text.txt, special tokens recognized
  text plain IDS...       the same, special tokens as plain text
  hash FIRST PARSED PLAIN random texts FIRST to FIRST + 99 (random_text.py), recognized and plain: the
                          first 16 hex digits of SHA-256 over, per text, u32 count and the u32 ids
  chat NAME IDS...        conversations (CHATS below) by the model's own Jinja template
"""

import hashlib
import importlib.metadata
import pathlib
import struct
import sys

import jinja2

from hf_model import make_tokenizer, open_gguf
from random_text import random_text

TEXTS = 10000
PER_HASH = 100
USER = {"role": "user", "content": "What is 12 x 34? It's easy.\n"}
CHATS = {"user": ([USER], True),
         "system_user": ([{"role": "system", "content": "Be brief."}, USER], True),
         "dialogue": ([USER, {"role": "assistant", "content": "408."}, {"role": "user", "content": ""}],
                      False)}


def encode(tokenizer, text, parsed):
    tokenizer.encode_special_tokens = not parsed
    return tokenizer.encode(text, add_special_tokens=False).ids


def packed(ids):
    return struct.pack(f"<I{len(ids)}I", len(ids), *ids)


def main(path):
    _, meta = open_gguf(path)
    tokenizer = make_tokenizer(meta)
    version = importlib.metadata.version("tokenizers")
    lines = [f"# written by make_tokenizer_golden.py with tokenizers {version}: do not edit"]
    here = pathlib.Path(__file__).parent
    # Read as bytes: Python's text mode would turn a lone carriage return into a line feed.
    text = (here / "tokenizer_text.txt").read_bytes().decode("utf-8")
    for name, parsed in (("parsed", True), ("plain", False)):
        lines.append(f"text {name} " + " ".join(map(str, encode(tokenizer, text, parsed))))
    for first in range(0, TEXTS, PER_HASH):
        texts = [random_text(i) for i in range(first, first + PER_HASH)]
        digests = [hashlib.sha256(b"".join(packed(encode(tokenizer, t, parsed)) for t in texts))
                   .hexdigest()[:16] for parsed in (True, False)]
        lines.append(f"hash {first} {digests[0]} {digests[1]}")
    template = jinja2.Environment().from_string(meta["tokenizer.chat_template"])
    for name, (messages, ask) in CHATS.items():
        # Jinja drops one trailing line feed of a template's source, as Transformers has it too.
        text = template.render(messages=messages, add_generation_prompt=ask)
        lines.append(f"chat {name} " + " ".join(map(str, encode(tokenizer, text, True))))
    (here / "tokenizer.txt").write_text("\n".join(lines) + "\n")
    print(f"tokenizer.txt: {len(lines)} lines", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
