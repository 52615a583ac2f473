#include "cache-server/page_push.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "cache-server/request_fields.h"
#include "kernels/page_layout.h"
#include "proto/wire.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr uint64_t kBasePositionMax = uint64_t{1} << 40;  // a million times what a model reads
constexpr size_t kExtraBytesMax = 4096;

absl::Status CheckServed(const v1::PushPage& page, const ModelSpec& spec, const PartRange& part) {
  if (page.extra_planes_size() > 0) {
    return absl::UnimplementedError("extra_planes: are not taken yet");
  }
  if ((page.precision() == v1::PRECISION_OPAQUE) != (spec.kv_dtype == KvDtype::kOpaque)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "precision: %d, pages of a model are opaque if its kv_dtype is", page.precision()));
  }
  if (page.precision() != v1::PRECISION_RAW16 && page.precision() != v1::PRECISION_OPAQUE) {
    return absl::UnimplementedError(
        absl::StrFormat("precision: %d is not taken yet, push raw16", page.precision()));
  }
  if (spec.kv_dtype != KvDtype::kBf16 && spec.kv_dtype != KvDtype::kOpaque) {
    return absl::UnimplementedError("kv_dtype: only bf16 and opaque pages are taken yet");
  }
  if (spec.groups[part.group].kind != GroupKind::kFull) {
    return absl::UnimplementedError("part.group: only FULL layer groups are taken yet");
  }
  return absl::OkStatus();
}

}  // namespace

PagePush::PagePush(ServiceContext& context, const Caller& caller, const v1::PushPage& page)
    : context_(context), caller_(caller), key_(page.key()), start_(context.clock.Monotonic()) {
  status_ = Begin(page);
}

absl::Status PagePush::Begin(const v1::PushPage& page) {
  const CallerScope* scope = nullptr;
  PAGODA_RETURN_IF_ERROR(CheckScope(page, scope));
  PAGODA_RETURN_IF_ERROR(CheckKeys(page, *scope));
  PAGODA_RETURN_IF_ERROR(BuildHeader(page, *scope));
  PAGODA_RETURN_IF_ERROR(CheckPlace());
  const std::optional<PlacedPage> stored = Stored(header_.record.key);
  if (stored.has_value() && KeepsStored(*stored)) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(StagedPage staged, context_.store.Stage(scope->id, header_));
  staged_.emplace(std::move(staged));
  return absl::OkStatus();
}

absl::Status PagePush::CheckScope(const v1::PushPage& page, const CallerScope*& scope) {
  PAGODA_ASSIGN_OR_RETURN(const ScopeId scope_id, ParseId<ScopeId>("scope_id", page.scope_id()));
  PAGODA_ASSIGN_OR_RETURN(scope, caller_.ScopeById(scope_id));
  if (scope->may_push) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("tenant ", caller_.tenant(), " may not push into ", ScopeName(scope->scope),
                   scope->scope.kind == ScopeKind::kPublic ? "; its token needs publish: true"
                                                           : "; its token has push: false"));
}

absl::Status PagePush::CheckKeys(const v1::PushPage& page, const CallerScope& scope) {
  PAGODA_ASSIGN_OR_RETURN(header_.identity, ParseId<Identity>("identity", page.identity()));
  PAGODA_ASSIGN_OR_RETURN(header_.record.key, ParseId<PageKey>("key", page.key()));
  PAGODA_ASSIGN_OR_RETURN(header_.parent, ParseId<PageKey>("parent", page.parent()));
  const std::optional<KnownModel> model = context_.models.Find(header_.identity);
  if (!model.has_value()) {
    return absl::FailedPreconditionError("the model was never announced here; call Hello with it");
  }
  spec_ = model->spec;
  header_.parent_is_root = page.parent_is_root();
  const PageKey root = RootOf(header_.identity, scope.scope.kind, scope.secret);
  if (page.parent_is_root() && header_.parent != root) {
    return absl::InvalidArgumentError("parent: is not the root of this scope and model");
  }
  const auto token_count = static_cast<uint32_t>(page.token_ids_size());
  if (token_count == 0) return absl::OkStatus();
  if (token_count != page.page_tokens()) {
    return absl::InvalidArgumentError(absl::StrFormat("token_ids: %d given for a page of %d tokens",
                                                      token_count, page.page_tokens()));
  }
  if (page.extra().size() > kExtraBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("extra: has %d bytes, expected at most %d",
                                                      page.extra().size(), kExtraBytesMax));
  }
  header_.token_ids.assign(page.token_ids().begin(), page.token_ids().end());
  if (KeyOf(header_.parent, header_.token_ids, page.extra()) != header_.record.key) {
    return absl::InvalidArgumentError("key: does not match parent, token ids and extra");
  }
  header_.chunk_key = ChunkKeyOf(root, header_.token_ids);
  return absl::OkStatus();
}

absl::Status PagePush::BuildHeader(const v1::PushPage& page, const CallerScope& scope) {
  PAGODA_ASSIGN_OR_RETURN(const PartRange part, ParsePart(page.part(), spec_));
  PAGODA_RETURN_IF_ERROR(CheckServed(page, spec_, part));
  const LayerGroup& group = spec_.groups[part.group];
  const bool opaque = spec_.kv_dtype == KvDtype::kOpaque;
  kernels::PageShape shape;
  if (opaque) {
    PAGODA_RETURN_IF_ERROR(
        kernels::ValidateOpaquePage(group.layer_count, page.opaque_layer_bytes()));
    if (page.page_tokens() < 1 || page.page_tokens() > kOpaqueTokensMax) {
      return absl::InvalidArgumentError(absl::StrFormat("page_tokens: is %d, expected 1 to %d",
                                                        page.page_tokens(), kOpaqueTokensMax));
    }
  } else {
    if (page.page_tokens() > kernels::kPageTokensMax || group.head_dim > kernels::kHeadDimMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "page of %d tokens and head_dim %d: expected at most %d and %d", page.page_tokens(),
          group.head_dim, kernels::kPageTokensMax, kernels::kHeadDimMax));
    }
    shape = {static_cast<int32_t>(group.layer_count), part.head_count,
             static_cast<int32_t>(group.head_dim), static_cast<int32_t>(page.page_tokens())};
    PAGODA_RETURN_IF_ERROR(kernels::ValidatePageShape(shape));
  }
  PAGODA_ASSIGN_OR_RETURN(header_.fidelity, FromWire(page.fidelity(), Precision::kRaw16));
  if (page.base_position() > kBasePositionMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("base_position: %d, expected at most 2^40", page.base_position()));
  }
  header_.record = part.RecordOf(header_.record.key);
  header_.scope = scope.id;
  header_.scope_kind = scope.scope.kind;
  header_.page_tokens = page.page_tokens();
  header_.base_position = page.base_position();
  header_.layer_count = static_cast<uint16_t>(group.layer_count);
  header_.head_dim = static_cast<uint16_t>(group.head_dim);
  header_.rope =
      spec_.rope.style == RopeStyle::kNone ? RopeState::kNotApplicable : RopeState::kPostRope;
  header_.rope_theta = spec_.rope.theta;
  header_.backend_tag = page.backend_tag();
  header_.pusher = caller_.pusher();
  header_.created_unix_seconds = static_cast<uint64_t>(context_.clock.UnixSeconds());
  if (opaque) {
    kernels::AppendOpaquePlane(header_.layer_count, page.opaque_layer_bytes(), header_);
  } else {
    kernels::AppendPlanes(Precision::kRaw16, shape, header_);
  }
  const size_t crc_count = static_cast<size_t>(page.segment_crc32c_size());
  if (crc_count != header_.segments.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "segment_crc32c: %d given, the page has %d segments", crc_count, header_.segments.size()));
  }
  for (size_t i = 0; i < crc_count; ++i) {
    header_.segments[i].crc32c = page.segment_crc32c(static_cast<int>(i));
  }
  header_.content_hash = ContentHashOf(header_.segments);
  ref_ = {header_.record, header_.scope};
  return absl::OkStatus();
}

// A page continues its parent: known, and at the position where the parent ends.
absl::Status PagePush::CheckPlace() {
  if (header_.parent_is_root) {
    if (header_.base_position == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("base_position: %d for a first page, expected 0", header_.base_position));
  }
  const std::optional<PlacedPage> parent = Stored(header_.parent);
  if (!parent.has_value()) {
    return absl::FailedPreconditionError("the parent is not stored; push it first");
  }
  const uint64_t expected = parent->base_position + parent->page_tokens;
  if (header_.base_position != expected) {
    return absl::InvalidArgumentError(absl::StrFormat("base_position: %d, the parent ends at %d",
                                                      header_.base_position, expected));
  }
  return absl::OkStatus();
}

std::optional<PlacedPage> PagePush::Stored(const PageKey& key) const {
  RecordKey record = header_.record;
  record.key = key;
  LookupQuery query;
  query.scope = header_.scope;
  query.identity = header_.identity;
  query.keys = absl::MakeConstSpan(&record, 1);
  query.touch = false;
  const absl::StatusOr<LookupAnswer> answer = context_.store.LookupPrefix(query);
  if (!answer.ok() || answer->pages.empty()) return std::nullopt;
  return answer->pages[0];
}

Precision PagePush::KeptPrecision() const {
  return context_.models.LadderOf(header_.identity).fresh;
}

bool PagePush::KeepsStored(const PlacedPage& stored) const {
  if (stored.fidelity < header_.fidelity) return false;
  // A coarser page may have to give way to one that was computed anew: see Commit().
  return stored.precision >= std::max(Precision::kQ8, KeptPrecision());
}

void PagePush::AddPiece(const PieceView& piece) {
  if (status_.ok()) status_ = Add(piece);
  if (!status_.ok()) staged_.reset();
}

absl::Status PagePush::Add(const PieceView& piece) {
  if (segment_ == header_.segments.size()) {
    return absl::InvalidArgumentError("pieces: more bytes than the page has");
  }
  const SegmentEntry& segment = header_.segments[segment_];
  if (piece.address.segment_index != segment_ || piece.address.offset != offset_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("pieces: segment %d offset %d came, expected segment %d offset %d",
                        piece.address.segment_index, piece.address.offset, segment_, offset_));
  }
  if (piece.size == 0 || piece.size > segment.length - offset_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "pieces: %d bytes at offset %d of a segment of %d", piece.size, offset_, segment.length));
  }
  for (const ByteSpan run : piece.data) {
    if (staged_.has_value()) {
      staged_->Append(segment_, run);
      crc_ = staged_->appended_crc32c(segment_);
    } else {
      crc_ = Crc32c(run, crc_);
    }
  }
  context_.metrics.OnTransferBytes(TransferDirection::kIn, static_cast<int64_t>(piece.size));
  offset_ += piece.size;
  if (offset_ < segment.length) return absl::OkStatus();
  if (crc_ != segment.crc32c) {
    return absl::DataLossError(absl::StrFormat("segment %d: checksum %08x, announced %08x",
                                               segment_, crc_, segment.crc32c));
  }
  ++segment_;
  offset_ = 0;
  crc_ = 0;
  return absl::OkStatus();
}

void PagePush::AddSharedSegment(ByteSpan bytes) {
  if (status_.ok()) status_ = AddShared(bytes);
  if (!status_.ok()) staged_.reset();
}

absl::Status PagePush::AddShared(ByteSpan bytes) {
  shared_ = true;
  if (segment_ == header_.segments.size()) {
    return absl::InvalidArgumentError("segments: more than the page has");
  }
  const SegmentEntry& segment = header_.segments[segment_];
  if (bytes.size() != segment.length) {
    return absl::InvalidArgumentError(absl::StrFormat("segment %d: %d bytes, expected %d", segment_,
                                                      bytes.size(), segment.length));
  }
  context_.metrics.OnShmTaken(static_cast<int64_t>(bytes.size()));
  uint32_t crc;
  if (staged_.has_value()) {
    staged_->Append(segment_, bytes);
    crc = staged_->appended_crc32c(segment_);
  } else {
    crc = Crc32c(bytes);
  }
  if (crc != segment.crc32c) {
    return absl::DataLossError(absl::StrFormat("segment %d: checksum %08x, announced %08x",
                                               segment_, crc, segment.crc32c));
  }
  ++segment_;
  return absl::OkStatus();
}

// Honest workers differ in the last bits only if their arithmetic does.
void PagePush::CompareContent() const {
  const HostPagePtr stored = context_.store.GetResident(ref_.record, ref_.scope);
  if (stored == nullptr || stored->header().backend_tag != header_.backend_tag) return;
  if (stored->header().fidelity != header_.fidelity) return;
  if (stored->header().content_hash != header_.content_hash) context_.metrics.OnPusherMismatch();
}

absl::StatusOr<PushedPage> PagePush::Commit(const PageNeed& need) {
  PAGODA_RETURN_IF_ERROR(status_);
  if (segment_ != header_.segments.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("commit: after %d of %d segments", segment_, header_.segments.size()));
  }
  PushedPage pushed{ref_, end_position(), CommitOutcome::kAlreadyStored};
  if (!staged_.has_value()) {
    CompareContent();
    return pushed;
  }
  // Windows are served at q8, too. More than its ladder keeps is not worth a replacement.
  const Precision keep_at_least = std::max(need.in_window ? Precision::kQ8 : Precision::kNone,
                                           std::min(need.precision, KeptPrecision()));
  PAGODA_ASSIGN_OR_RETURN(
      pushed.outcome, context_.store.Commit(*std::move(staged_), {.keep_at_least = keep_at_least}));
  staged_.reset();
  if (pushed.outcome != CommitOutcome::kAlreadyStored) {
    int64_t payload = 0;
    for (const SegmentEntry& segment : header_.segments) payload += segment.length;
    context_.metrics.OnPutBytes(caller_.tenant(), PrecisionOf(header_.planes), payload);
    const absl::Duration took = context_.clock.Monotonic() - start_;
    context_.metrics.OnCommitted(took);
    context_.metrics.OnTransferTook(TransferDirection::kIn, took,
                                    shared_ ? TransferPath::kShm : TransferPath::kGrpc);
  }
  return pushed;
}

}  // namespace pagoda
