// The end of a push, whichever way its bytes came: committed for its sequence, counted, answered.
//
// Threads  any, one at a time for a page
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "cache-server/page_push.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda {

// Attaches the page to its sequence, if it has one, and commits it. The page is used up.
absl::StatusOr<PushedPage> CommitPush(ServiceContext& context, const SessionId& session,
                                      const std::optional<SequenceId>& sequence, PagePush& page);

// Counts the outcome and says it.
v1::PushResponse PushAnswer(ServiceContext& context, const PagePush& page,
                            const absl::StatusOr<PushedPage>& pushed);

}  // namespace pagoda
