#include "cache-server/push_answer.h"

#include <string>

#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

PutResult ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
      return PutResult::kRejectedParent;
    case absl::StatusCode::kPermissionDenied:
      return PutResult::kRejectedScope;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return PutResult::kRejectedRequest;
    case absl::StatusCode::kResourceExhausted:
      return PutResult::kRejectedRoom;
    case absl::StatusCode::kDataLoss:
      return PutResult::kRejectedChecksum;
    default:
      return PutResult::kError;
  }
}

PutResult ResultOf(CommitOutcome outcome) {
  if (outcome == CommitOutcome::kAlreadyStored) return PutResult::kDuplicate;
  return outcome == CommitOutcome::kReplaced ? PutResult::kReplaced : PutResult::kStored;
}

}  // namespace

absl::StatusOr<PushedPage> CommitPush(ServiceContext& context, const SessionId& session,
                                      const std::optional<SequenceId>& sequence, PagePush& page) {
  PageNeed need;
  if (page.status().ok() && sequence.has_value()) {
    // Attached before it can be seen: otherwise it might be encoded at once.
    const SequencePage attached{page.page(), page.end_position()};
    PAGODA_RETURN_IF_ERROR(
        context.encoder.AttachPages(session, *sequence, absl::MakeConstSpan(&attached, 1)));
    need = context.encoder.NeedOf(page.page().record);
  }
  absl::StatusOr<PushedPage> pushed = page.Commit(need);
  if (pushed.ok()) context.encoder.Consider(pushed->page);
  return pushed;
}

v1::PushResponse PushAnswer(ServiceContext& context, const PagePush& page,
                            const absl::StatusOr<PushedPage>& pushed) {
  v1::PushResponse response;
  response.set_key(page.key());
  if (pushed.ok()) {
    context.metrics.OnPut(ResultOf(pushed->outcome));
    response.set_outcome(static_cast<v1::PushOutcome>(static_cast<int>(pushed->outcome) + 1));
  } else {
    context.metrics.OnPut(ResultOf(pushed.status()));
    response.set_code(static_cast<int32_t>(pushed.status().code()));
    response.set_message(std::string(pushed.status().message()));
  }
  return response;
}

}  // namespace pagoda
