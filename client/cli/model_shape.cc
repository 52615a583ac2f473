#include "client/cli/model_shape.h"

#include <cctype>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "storage/base/page_header.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct NamedShape {
  absl::string_view name;
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim;
};

constexpr NamedShape kShapes[] = {
    {"llama-3-8b", 32, 8, 128},
    {"llama-3-70b", 80, 8, 128},
    {"qwen2.5-7b", 28, 4, 128},
    {"smollm2-135m", 30, 3, 64},
};

// Beyond the first page of a sequence, which carries sink rows besides.
constexpr uint64_t kLaterPosition = 1 << 20;

}  // namespace

absl::StatusOr<kernels::PageShape> ParseModelShape(absl::string_view spec, int32_t page_tokens) {
  kernels::PageShape shape;
  shape.page_tokens = page_tokens;
  std::string names;
  for (const NamedShape& named : kShapes) {
    absl::StrAppend(&names, named.name, ", ");
    if (named.name != spec) continue;
    shape.layer_count = named.layers;
    shape.head_count = named.kv_heads;
    shape.head_dim = named.head_dim;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(spec, ':');
  const bool numbers = parts.size() == 3 && absl::SimpleAtoi(parts[0], &shape.layer_count) &&
                       absl::SimpleAtoi(parts[1], &shape.head_count) &&
                       absl::SimpleAtoi(parts[2], &shape.head_dim);
  if (!numbers && shape.layer_count == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "unknown model \"%s\"; known are %sor a shape LAYERS:KVHEADS:HEADDIM such as 32:8:128",
        spec, names));
  }
  PAGODA_RETURN_IF_ERROR(kernels::ValidatePageShape(shape));
  return shape;
}

int64_t StoredPageBytes(const kernels::PageShape& shape, Precision precision) {
  PageHeader header;
  header.base_position = kLaterPosition;
  header.token_ids.resize(static_cast<size_t>(shape.page_tokens));
  kernels::AppendPlanes(precision, shape, header);
  return header.stored_bytes();
}

int64_t RawTokenBytes(const kernels::PageShape& shape) {
  constexpr int64_t kTensors = 2;  // K and V
  constexpr int64_t kValueBytes = 2;
  return kTensors * kValueBytes * shape.layer_count * shape.head_count * shape.head_dim;
}

absl::StatusOr<int64_t> ParseAmount(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrFormat(
      "\"%s\" is no amount; write a number and a unit, such as 1000, 3M, 64GiB or 1.5TB", text));
  absl::string_view rest = text;
  absl::ConsumeSuffix(&rest, "B");
  const bool binary = absl::ConsumeSuffix(&rest, "i");
  double unit = 1;
  for (const absl::string_view letters : {"kK", "M", "G", "T"}) {
    unit *= binary ? 1024 : 1000;
    if (rest.empty() || letters.find(rest.back()) == absl::string_view::npos) continue;
    rest.remove_suffix(1);
    double number = 0;
    if (!absl::SimpleAtod(rest, &number)) return wrong;
    const double amount = std::floor(number * unit);
    if (!(amount >= 1 && amount <= 0x1p62)) return wrong;
    return static_cast<int64_t>(amount);
  }
  int64_t amount = 0;
  if (binary || !absl::SimpleAtoi(rest, &amount) || amount < 1) return wrong;
  return amount;
}

}  // namespace pagoda::cli
