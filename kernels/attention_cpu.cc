#include "kernels/attention.h"
#include "kernels/attention_kernels.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {

absl::Status AttentionCpu(const AttentionParams& params, AttentionScratch& scratch) {
  PAGODA_RETURN_IF_ERROR(ValidateAttention(params));
  if (params.query_count == 1) {
    DecodeAttention(params, scratch);
  } else {
    PrefillAttention(params, scratch);
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
