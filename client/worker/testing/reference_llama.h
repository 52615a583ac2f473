// A Llama forward pass as plain as it can be, in double: what forward_pass.h is measured against.
// It shares nothing with it but the dequantized weights: whole rows of scores, RoPE on the
// interleaved pairs of the file, no pages. K and V are rounded to bf16, as the worker's are.
//
// Cost  every weight is decoded again for each token: for tiny models only
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/worker/gguf.h"
#include "client/worker/llama_config.h"

namespace pagoda {

// Logits after every token, [ids.size()][vocab_size].
std::vector<double> ReferenceLogits(const GgufFile& file, const LlamaConfig& config,
                                    absl::Span<const uint32_t> ids);

}  // namespace pagoda
