#include "client/lab/kv_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/page_layout.h"

namespace pagoda::lab {
namespace {

constexpr double kScaleBits = 16;  // of every stored scale, zero and mean
constexpr int32_t kLlamaBlock = 32;
constexpr int32_t kAffineGroup = 64;
constexpr int64_t kKVarNTile = 128;

struct Shape {
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  // Scales of one token and rate, spread over its channels.
  double ScaleBits() const { return kScaleBits * kernels::GroupsOf(head_dim).count / head_dim; }
  double MeanBits() const { return kScaleBits / page_tokens; }
};

KvCodec Product(const Shape& shape, Precision precision) {
  const bool q8 = precision == Precision::kQ8;
  KvCodec codec;
  codec.rule = q8                            ? "both planes, the product's kernels"
               : precision == Precision::kQ4 ? "hi plane, the product's kernels"
                                             : "top codes, the product's kernels";
  codec.v_bits = static_cast<int>(precision) + (q8 ? 2 : 1) * shape.ScaleBits();
  codec.k_bits = codec.v_bits + shape.MeanBits();
  codec.product = precision;
  return codec;
}

// The top bits of the product's code, decoded in float and read like the comparators.
KvCodec Prefix(const Shape& shape, int k_bits, int v_bits) {
  const auto group = [](int bits, ScaleRule rule) {
    return PerProductGroup([bits, rule](absl::Span<float> x) { RoundTripPrefix(x, bits, rule); });
  };
  KvCodec codec;
  codec.rule = absl::StrFormat("top %d bits of K, %d of V, own scales", k_bits, v_bits);
  codec.k_bits = k_bits + shape.ScaleBits() + shape.MeanBits();
  codec.v_bits = v_bits + shape.ScaleBits();
  codec.tile_tokens = shape.page_tokens;
  codec.k = InProductFrame(Centring::kMean, group(k_bits, ScaleRule::kUnbiased));
  codec.v = InProductFrame(Centring::kNone, group(v_bits, ScaleRule::kLeastSquares));
  return codec;
}

KvCodec Llama(const Shape& shape, int bits, bool rotated) {
  const RoundTrip plain = PerToken(kLlamaBlock, bits == 8 ? RoundTripQ8_0 : RoundTripQ4_0);
  KvCodec codec;
  codec.rule = rotated ? "llama.cpp, groups of 32, Hadamard" : "llama.cpp, groups of 32";
  codec.k_bits = codec.v_bits = bits + kScaleBits / kLlamaBlock;
  codec.tile_tokens = shape.page_tokens;
  // K: the largest power of two that divides the head; V: 64.
  codec.k =
      rotated ? InHadamard(shape.head_dim & -shape.head_dim, plain) : InInterleavedOrder(plain);
  codec.v = rotated ? InHadamard(64, plain) : plain;
  return codec;
}

GroupRoundTrip Affine(int bits, ScaleType type) {
  return [bits, type](absl::Span<float> x) { RoundTripAffine(x, bits, type); };
}

KvCodec Kivi(const Shape& shape, int bits) {
  KvCodec codec;
  codec.rule = "affine: K by channel over a page, V by token over 64";
  codec.k_bits = bits + 2 * kScaleBits / shape.page_tokens;
  codec.v_bits = bits + 2 * kScaleBits / kAffineGroup;
  codec.tile_tokens = shape.page_tokens;
  codec.k = PerChannel(Affine(bits, ScaleType::kFp16));
  codec.v = PerToken(kAffineGroup, Affine(bits, ScaleType::kFp16));
  return codec;
}

KvCodec QuantizedCache(const Shape& shape) {
  KvCodec codec;
  codec.rule = "Transformers' QuantizedCache: affine by token over 64";
  codec.k_bits = codec.v_bits = 4 + 2 * kScaleBits / kAffineGroup;
  codec.tile_tokens = shape.page_tokens;
  codec.k = codec.v = PerToken(kAffineGroup, Affine(4, ScaleType::kBf16));
  return codec;
}

KvCodec KVarNCodec(const Shape& shape, int bits) {
  KvCodec codec;
  codec.rule = "spread-normalized affine tiles of 128 tokens, rotated";
  codec.k_bits = bits + 2 * kScaleBits / kKVarNTile + kScaleBits / shape.head_dim;
  codec.v_bits = bits + 2 * kScaleBits / shape.head_dim + kScaleBits / kKVarNTile;
  codec.tile_tokens = kKVarNTile;
  codec.k = InProductFrame(Centring::kNone, KVarN(bits, TileRows::kChannels));
  codec.v = InProductFrame(Centring::kNone, KVarN(bits, TileRows::kTokens));
  return codec;
}

enum class Heads { kAny, kOf64 };  // that the rule can cut
struct Entry {
  const char* name;
  Heads heads;
  KvCodec (*make)(const Shape& shape);
};
// In the order of the table: falling bits, ours first.
constexpr Entry kEntries[] = {
    {"q8", Heads::kAny, [](const Shape& shape) { return Product(shape, Precision::kQ8); }},
    {"e88", Heads::kAny, [](const Shape& shape) { return Prefix(shape, 8, 8); }},
    {"q8_0+H", Heads::kOf64, [](const Shape& shape) { return Llama(shape, 8, true); }},
    {"q8_0", Heads::kOf64, [](const Shape& shape) { return Llama(shape, 8, false); }},
    {"q4", Heads::kAny, [](const Shape& shape) { return Product(shape, Precision::kQ4); }},
    {"e44", Heads::kAny, [](const Shape& shape) { return Prefix(shape, 4, 4); }},
    {"q4_0+H", Heads::kOf64, [](const Shape& shape) { return Llama(shape, 4, true); }},
    {"q4_0", Heads::kOf64, [](const Shape& shape) { return Llama(shape, 4, false); }},
    {"kivi4", Heads::kOf64, [](const Shape& shape) { return Kivi(shape, 4); }},
    {"hf4", Heads::kOf64, QuantizedCache},
    {"e43", Heads::kAny, [](const Shape& shape) { return Prefix(shape, 4, 3); }},
    {"q3", Heads::kAny, [](const Shape& shape) { return Product(shape, Precision::kQ3); }},
    {"e33", Heads::kAny, [](const Shape& shape) { return Prefix(shape, 3, 3); }},
    {"e32", Heads::kAny, [](const Shape& shape) { return Prefix(shape, 3, 2); }},
    {"q2", Heads::kAny, [](const Shape& shape) { return Product(shape, Precision::kQ2); }},
    {"e22", Heads::kAny, [](const Shape& shape) { return Prefix(shape, 2, 2); }},
    {"kvarn2", Heads::kOf64, [](const Shape& shape) { return KVarNCodec(shape, 2); }},
    {"kivi2", Heads::kOf64, [](const Shape& shape) { return Kivi(shape, 2); }},
};

}  // namespace

std::vector<std::string> KvCodecNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

absl::StatusOr<KvCodec> MakeKvCodec(absl::string_view name, int32_t head_dim, int32_t page_tokens) {
  const bool of_64 = head_dim % 64 == 0 && kKVarNTile % page_tokens == 0;
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    if (entry.heads == Heads::kOf64 && !of_64) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "codec %s: heads of %d channels in pages of %d tokens; its rule needs a multiple of 64 "
          "and pages that divide 128; name other codecs",
          name, head_dim, page_tokens));
    }
    KvCodec codec = entry.make({.head_dim = head_dim, .page_tokens = page_tokens});
    codec.name = entry.name;
    return codec;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no codec ", name, "; there are ", absl::StrJoin(KvCodecNames(), ", ")));
}

}  // namespace pagoda::lab
