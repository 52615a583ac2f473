"""Writes logits.bin: next-token distributions of Hugging Face Transformers in float32.

usage: python3 make_logits_golden.py GGUF
needs: gguf tokenizers transformers torch (CPU; two minutes and 2 GB of memory at most)

Three texts of 256 tokens (two from Debian's /usr/share/common-licenses, one of code), each in one
forward pass with the dequantized weights; every 4th position is kept: 64 per text. Of a distribution
over 49,152 tokens the file holds the 256 likeliest with their log-probabilities and the mass of all
others. KL over these 257 cells is a lower bound of the full KL (merging cells never raises it), and
a close one: the others hold little mass. The format is drawn in README.md.
"""

import hashlib
import pathlib
import struct
import sys

import torch

from hf_model import make_model, make_tokenizer, open_gguf

TOKENS = 256
STEP = 4
TOP = 256
LICENSES = pathlib.Path("/usr/share/common-licenses")
CODE = '''#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

// A least-recently-used cache of strings. Not thread-safe.
class LruCache {
 public:
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // Returns nullptr on a miss.
  const std::string* Get(uint64_t key) {
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->key == key) {
        std::rotate(entries_.begin(), it, it + 1);
        return &entries_.front().value;
      }
    }
    return nullptr;
  }

  void Put(uint64_t key, std::string value) {
    if (Get(key) != nullptr) {
      entries_.front().value = std::move(value);
      return;
    }
    if (entries_.size() == capacity_) entries_.pop_back();
    entries_.insert(entries_.begin(), Entry{key, std::move(value)});
  }

  size_t size() const { return entries_.size(); }
  void Clear() { entries_.clear(); }

 private:
  struct Entry {
    uint64_t key;
    std::string value;
  };

  const size_t capacity_;
  std::vector<Entry> entries_;  // the most recent first
};

int main() {
  LruCache cache(2);
  cache.Put(1, "one");
  cache.Put(2, "two");
  return cache.Get(1) != nullptr ? 0 : 1;
}
'''


def texts():
    gpl = (LICENSES / "GPL-3").read_text()
    apache = (LICENSES / "Apache-2.0").read_text()
    # Not from the start: every model knows the first lines by heart.
    return [gpl[gpl.index("TERMS AND CONDITIONS"):], apache[apache.index("2. Grant of Copyright"):], CODE]


def main(path):
    reader, meta = open_gguf(path)
    tokenizer = make_tokenizer(meta)
    model = make_model(reader, meta)
    out = bytearray(b"PGLOGITS")
    out += hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
    vocabulary = len(meta["tokenizer.ggml.tokens"])
    assert vocabulary <= 65536  # ids are stored in 16 bits
    out += struct.pack("<IIII", 1, vocabulary, 3, TOP)
    for text in texts():
        ids = tokenizer.encode(text[:8000], add_special_tokens=False).ids[:TOKENS]
        assert len(ids) == TOKENS
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        positions = range(STEP - 1, TOKENS, STEP)
        out += struct.pack("<II", TOKENS, len(positions)) + struct.pack(f"<{TOKENS}I", *ids)
        for position in positions:
            log_sum = torch.logsumexp(logits[position], 0)
            top, top_ids = torch.topk(logits[position] - log_sum, TOP)
            rest = max(0.0, 1.0 - top.exp().sum().item())
            out += struct.pack("<Iff", position, log_sum.item(), rest)
            out += struct.pack(f"<{TOP}H", *top_ids.tolist()) + struct.pack(f"<{TOP}f", *top.tolist())
        likelihood = torch.log_softmax(logits[:-1], -1)[range(TOKENS - 1), ids[1:]].mean().item()
        print(f"mean log-likelihood {likelihood:.4f} per token", file=sys.stderr)
    pathlib.Path(__file__).with_name("logits.bin").write_bytes(out)
    print(f"logits.bin: {len(out)} bytes", file=sys.stderr)


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
