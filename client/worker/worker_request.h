// The lines that pagoda-worker reads and writes: one JSON object per request, one per answer.
//
//   {"prompt": "What is a KV cache?", "max_tokens": 64}
//   {"id": "a", "token_ids": [1, 2, 3], "chat": false, "temperature": 0.7, "top_p": 0.9, "seed": 1}
//
// Keys of a request   id, prompt | token_ids, chat (true: the model's chat format), max_tokens,
//                     temperature, top_p, seed, precision, window,
//                     load (by_layer: compute while later layers travel; whole)
// Keys of an answer   id, prompt_tokens, hit_tokens, hit_tier, hit_precision, hit_bytes, ttft_ms,
//                     load_ms (before the first layer), wait_ms (for later ones), decode_tps,
//                     kv_bytes_per_token, raw16_bytes_per_token, finish, token_ids,
//                     text, logits_digest (SHA-256 of every logit vector, in order), cache_problem;
//                     or id and error
// Errors  INVALID_ARGUMENT names the key, its value and what is accepted
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/worker/generator.h"

namespace pagoda {

struct WorkerRequest {
  std::string id;
  std::string prompt;
  std::vector<uint32_t> token_ids;  // instead of a prompt
  bool chat = true;
  GenerateOptions options;
};

struct WorkerAnswer {
  std::string id;
  GenerateResult result;
  std::string text;
  std::string logits_digest;
  std::string cache_problem;
};

// `defaults` stand where the line says nothing.
absl::StatusOr<WorkerRequest> ParseWorkerRequest(absl::string_view line,
                                                 const WorkerRequest& defaults);

std::string FormatWorkerAnswer(const WorkerAnswer& answer);
std::string FormatWorkerError(absl::string_view id, const absl::Status& status);

}  // namespace pagoda
