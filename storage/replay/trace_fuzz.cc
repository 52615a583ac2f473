// Feeds arbitrary bytes to the readers of traces, the first byte choosing which. What is read must
// be replayed without a surprise: the sums agree, and no policy that keeps chains whole has a hole.
#include <cstddef>
#include <cstdint>

#include "storage/base/check.h"
#include "storage/replay/replay_policies.h"
#include "storage/replay/trace_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::replay;  // NOLINT: an entry point of one function
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  absl::StatusOr<Trace> trace = absl::UnknownError("none yet");
  switch (data[0] % 5) {
    case 0:
      trace = ParseMooncakeTrace(text, "fuzz");
      break;
    case 1:
      trace = ParseAgenticTrace(text, "fuzz", AgenticOptions());
      break;
    case 2:
      trace = ParseCsvTrace(text, "fuzz");
      break;
    case 3:
      trace = ParseTrace(text, "fuzz", AgenticOptions());
      break;
    default:
      (void)Gunzip(text, 1 << 20).ok();
      return 0;
  }
  if (!trace.ok() || trace->block_count() > 10000 || trace->id_max() > 10000) return 0;
  for (const char* const policy : {"lru", "s3fifo", "belady"}) {
    const auto result = ReplayPolicy(*trace, 1 + data[0] / 5, policy, [](double) { return true; });
    PAGODA_CHECK(result.ok());
    PAGODA_CHECK(result->whole.blocks == trace->block_count());
    PAGODA_CHECK(result->whole.tokens == trace->input_tokens());
    PAGODA_CHECK(result->whole.block_hits <= trace->block_count() - trace->unique_count());
    PAGODA_CHECK(policy[0] == 'b' || result->whole.block_hits == result->whole.prefix_hits);
  }
  return 0;
}
