// Lookup and what follows from it: leases renewed and given back, hints.
//
// Threads  any; nothing here waits.   Cost  Lookup: one pass over the keys per chain
#pragma once

#include "absl/status/status.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda {

absl::Status AnswerLookup(ServiceContext& context, const Caller& caller,
                          const v1::LookupRequest& request, v1::LookupResponse& response);
absl::Status AnswerRelease(ServiceContext& context, const Caller& caller,
                           const v1::ReleaseRequest& request);
absl::Status AnswerRenew(ServiceContext& context, const Caller& caller,
                         const v1::RenewRequest& request, v1::RenewResponse& response);
absl::Status AnswerPrefetch(ServiceContext& context, const Caller& caller,
                            const v1::PrefetchRequest& request, v1::PrefetchResponse& response);
absl::Status AnswerReport(ServiceContext& context, const Caller& caller,
                          const v1::ReportRequest& request);

}  // namespace pagoda
