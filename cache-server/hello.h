// The Hello call: versions, the identity of a model, the roots of a caller's scopes, limits.
#pragma once

#include "absl/status/status.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda {

absl::Status AnswerHello(ServiceContext& context, const Caller& caller,
                         const v1::HelloRequest& request, v1::HelloResponse& response);

}  // namespace pagoda
