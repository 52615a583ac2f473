#include "client/worker/testing/logits_golden.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr char kMagic[8] = {'P', 'G', 'L', 'O', 'G', 'I', 'T', 'S'};
constexpr uint32_t kVersion = 1;

absl::Status Broken(const std::string& path) {
  return absl::DataLossError(absl::StrFormat("%s is cut or not a logits golden file", path));
}

GoldenPosition ReadPosition(uint32_t top_count, ByteReader* in) {
  GoldenPosition position;
  position.position = in->Get<uint32_t>();
  position.log_sum_exp = in->Get<float>();
  position.rest_mass = in->Get<float>();
  position.top_ids.resize(top_count);
  position.top_logprobs.resize(top_count);
  in->GetBytes(position.top_ids.data(), top_count * sizeof(uint16_t));
  in->GetBytes(position.top_logprobs.data(), top_count * sizeof(float));
  return position;
}

}  // namespace

absl::StatusOr<LogitsGolden> ReadLogitsGolden(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrFormat("no golden file at %s", path));
  const std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ByteReader in(AsBytes(data));
  char magic[sizeof(kMagic)];
  in.GetBytes(magic, sizeof(magic));
  std::string revision(32, '\0');
  in.GetBytes(revision.data(), revision.size());
  const auto version = in.Get<uint32_t>();
  LogitsGolden golden;
  golden.weights_revision = absl::BytesToHexString(revision);
  golden.vocab_size = in.Get<uint32_t>();
  const auto text_count = in.Get<uint32_t>();
  const auto top_count = in.Get<uint32_t>();
  if (in.failed() || !std::equal(magic, magic + sizeof(magic), kMagic) || version != kVersion ||
      top_count > golden.vocab_size) {
    return Broken(path);
  }
  for (uint32_t i = 0; i < text_count; ++i) {
    GoldenText text;
    const auto token_count = in.Get<uint32_t>();
    const auto position_count = in.Get<uint32_t>();
    if (in.failed() || token_count > in.remaining() / sizeof(uint32_t)) return Broken(path);
    text.tokens.resize(token_count);
    in.GetBytes(text.tokens.data(), token_count * sizeof(uint32_t));
    for (uint32_t p = 0; p < position_count; ++p) {
      if (in.failed() || in.remaining() == 0) return Broken(path);
      text.positions.push_back(ReadPosition(top_count, &in));
    }
    golden.texts.push_back(std::move(text));
  }
  if (in.failed() || in.remaining() != 0) return Broken(path);
  return golden;
}

double KlDivergence(const GoldenPosition& golden, absl::Span<const float> logits) {
  double logit_max = -INFINITY;
  for (const float logit : logits) logit_max = std::max(logit_max, double{logit});
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - logit_max);
  const double log_sum_exp = logit_max + std::log(sum);

  double divergence = 0;
  double other_rest = 1;
  for (size_t i = 0; i < golden.top_ids.size(); ++i) {
    PAGODA_CHECK(golden.top_ids[i] < logits.size());
    const double other = logits[golden.top_ids[i]] - log_sum_exp;
    divergence += std::exp(double{golden.top_logprobs[i]}) * (golden.top_logprobs[i] - other);
    other_rest -= std::exp(other);
  }
  // Below 1e-7 the rest is rounding of the stored numbers, on either side.
  if (golden.rest_mass > 1e-7) {
    divergence += golden.rest_mass * std::log(golden.rest_mass / std::max(other_rest, 1e-12));
  }
  return divergence;
}

}  // namespace pagoda
