// The admin call that changes what decides which pages go.
//
// Errors  INVALID_ARGUMENT names the field; nothing was changed
#pragma once

#include "absl/status/status.h"
#include "pagoda/v1/admin.pb.h"
#include "storage/tiered_store.h"

namespace pagoda {

// Applies what the request sets, all or nothing, and answers what is in force then.
absl::Status SetPolicy(TieredStore& store, const v1::SetPolicyRequest& request,
                       v1::SetPolicyResponse& response);

}  // namespace pagoda
