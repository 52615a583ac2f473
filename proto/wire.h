// Between the messages of proto/pagoda/v1 and the types of storage/base. The only hand-written code
// here, so that server and client convert and check in one way.
//
// Threads  pure functions.   Errors  INVALID_ARGUMENT names the field and what was expected
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "pagoda/v1/cache.pb.h"
#include "storage/base/model_spec.h"
#include "storage/base/page_header.h"
#include "storage/base/page_key.h"
#include "storage/base/precision.h"
#include "storage/base/scope.h"

namespace pagoda {

constexpr uint32_t kProtocolVersion = 1;
constexpr char kTokenMetadataKey[] = "authorization";  // "Bearer TOKEN"
constexpr char kHealthServiceName[] = "pagoda.v1.Cache";

v1::ModelSpec ToWire(const ModelSpec& spec);
// Validates too (ValidateModelSpec).
absl::StatusOr<ModelSpec> FromWire(const v1::ModelSpec& spec);

v1::Precision ToWire(Precision precision);
// UNSPECIFIED gives `fallback`; numbers outside the enum are refused.
absl::StatusOr<Precision> FromWire(v1::Precision precision, Precision fallback);

v1::ScopeKind ToWire(ScopeKind kind);

absl::string_view TierName(v1::Tier tier);  // "hbm", "host", "ssd", "peer", "none"

// The same sixteen codes on both sides.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// key(root = zeros, tokens 0 1 2 3): equal on both sides, or their keys never meet.
PageKey KnownAnswer();

// What tells apart the arithmetic of two builds: name of the SIMD target and of the GEMM library.
uint64_t BackendTagOf(absl::string_view description);

}  // namespace pagoda
