#include "client/worker/worker_request.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

using Json = nlohmann::ordered_json;

absl::Status WrongType(absl::string_view key, const Json& value, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("request: ", key, " is ", value.dump(), ", expected ", wanted));
}

absl::Status ReadIds(const Json& value, std::vector<uint32_t>& ids) {
  if (!value.is_array()) return WrongType("token_ids", value, "a list of token ids");
  ids.clear();
  for (const Json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return WrongType("token_ids", id, "token ids");
    }
    ids.push_back(id.get<uint32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadCount(absl::string_view key, const Json& value, int64_t min, int64_t& target) {
  if (!value.is_number_integer() || value.get<int64_t>() < min) {
    return WrongType(key, value, absl::StrCat("a whole number from ", min));
  }
  target = value.get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadNumber(absl::string_view key, const Json& value, float& target) {
  if (!value.is_number()) return WrongType(key, value, "a number");
  target = value.get<float>();
  return absl::OkStatus();
}

absl::Status ReadKey(const std::string& key, const Json& value, WorkerRequest& request) {
  GenerateOptions& options = request.options;
  if (key == "id" || key == "prompt" || key == "precision") {
    if (!value.is_string()) return WrongType(key, value, "a text");
    if (key == "id") request.id = value.get<std::string>();
    if (key == "prompt") request.prompt = value.get<std::string>();
    if (key == "precision") {
      PAGODA_ASSIGN_OR_RETURN(options.precision, ParsePrecision(value.get<std::string>()));
    }
    return absl::OkStatus();
  }
  if (key == "token_ids") return ReadIds(value, request.token_ids);
  if (key == "chat") {
    if (!value.is_boolean()) return WrongType(key, value, "true or false");
    request.chat = value.get<bool>();
    return absl::OkStatus();
  }
  if (key == "max_tokens") return ReadCount(key, value, 1, options.new_tokens_max);
  if (key == "window") return ReadCount(key, value, 0, options.window_tokens);
  if (key == "load") {
    const std::string how = value.is_string() ? value.get<std::string>() : "";
    if (how != "whole" && how != "by_layer") {
      return WrongType(key, value, "\"by_layer\" or \"whole\"");
    }
    options.load_by_layer = how == "by_layer";
    return absl::OkStatus();
  }
  if (key == "temperature") return ReadNumber(key, value, options.sampling.temperature);
  if (key == "top_p") return ReadNumber(key, value, options.sampling.top_p);
  if (key == "seed") {
    if (!value.is_number_unsigned()) return WrongType(key, value, "a whole number from 0");
    options.sampling.seed = value.get<uint64_t>();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "request: unknown key '", key,
      "'; known: id, prompt, token_ids, chat, max_tokens, temperature, top_p, seed, precision, "
      "window, load"));
}

absl::string_view FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCallback:
      return "cancelled";
  }
  return "unknown";
}

// Generated text may end inside a character: what is not UTF-8 is replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<WorkerRequest> ParseWorkerRequest(absl::string_view line,
                                                 const WorkerRequest& defaults) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("request: the line is not a JSON object");
  }
  WorkerRequest request = defaults;
  request.prompt.clear();
  request.token_ids.clear();
  for (const auto& [key, value] : json.items()) {
    PAGODA_RETURN_IF_ERROR(ReadKey(key, value, request));
  }
  if (request.prompt.empty() == request.token_ids.empty()) {
    return absl::InvalidArgumentError("request: exactly one of prompt and token_ids is needed");
  }
  PAGODA_RETURN_IF_ERROR(request.options.sampling.Validate());
  return request;
}

std::string FormatWorkerAnswer(const WorkerAnswer& answer) {
  const GenerateResult& result = answer.result;
  Json json;
  json["id"] = answer.id;
  json["prompt_tokens"] = result.prompt_tokens;
  json["hit_tokens"] = result.hit.tokens;
  json["hit_tier"] = result.hit.tier;
  json["hit_precision"] = std::string(PrecisionName(result.hit.precision));
  json["hit_bytes"] = result.hit.bytes;
  json["ttft_ms"] = result.ttft_seconds * 1e3;
  json["load_ms"] = result.load_seconds * 1e3;
  json["wait_ms"] = result.wait_seconds * 1e3;
  json["decode_tps"] = result.decode_tokens_per_second;
  json["kv_bytes_per_token"] = result.kv_bytes_per_token;
  json["raw16_bytes_per_token"] = result.raw16_bytes_per_token;
  json["finish"] = std::string(FinishName(result.finish_reason));
  json["token_ids"] = result.ids;
  json["text"] = answer.text;
  json["logits_digest"] = answer.logits_digest;
  json["cache_problem"] = answer.cache_problem;
  return Dump(json);
}

std::string FormatWorkerError(absl::string_view id, const absl::Status& status) {
  Json json;
  json["id"] = std::string(id);
  json["error"] = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  return Dump(json);
}

}  // namespace pagoda
