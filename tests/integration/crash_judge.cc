#include "tests/integration/crash_judge.h"

#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/crash_point.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);  // a loaded machine under a sanitizer
// Between a dying process's last word on a socket and its end.
constexpr absl::Duration kDying = absl::Seconds(2);

int64_t TierBytes(const v1::StatusResponse& status, v1::Tier tier) {
  for (const v1::TierStatus& one : status.tiers()) {
    if (one.tier() == tier) return static_cast<int64_t>(one.used_bytes());
  }
  return 0;
}

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

}  // namespace

CrashJudge::CrashJudge(DaemonProcess& daemon) : daemon_(daemon) {
  for (int stream = 0; stream < static_cast<int>(CrashStreams().size()); ++stream) {
    client::ClientOptions options;
    options.target = daemon.target();
    options.token = CrashStreams()[stream].token;
    options.model = CrashDocument(stream, 0).model();
    options.reconnect_interval = absl::Milliseconds(20);
    options.control_timeout = absl::Seconds(20);
    options.transfer_timeout = absl::Seconds(30);
    auto made = client::Client::Create(options);
    PAGODA_CHECK(made.ok());
    clients_.push_back(*std::move(made));
  }
}

CrashJudge::~CrashJudge() = default;

absl::StatusOr<std::vector<v1::PageRecord>> CrashJudge::ListPages() {
  grpc::ClientContext context;
  daemon_.Prepare(context);
  v1::ListPagesRequest request;
  request.set_limit(100000);
  std::vector<v1::PageRecord> pages;
  v1::ListPagesResponse batch;
  auto reader = daemon_.admin().ListPages(&context, request);
  while (reader->Read(&batch))
    pages.insert(pages.end(), batch.pages().begin(), batch.pages().end());
  const grpc::Status done = reader->Finish();
  if (!done.ok()) return absl::UnavailableError(done.error_message());
  return pages;
}

// A picture of one moment: asked again until the figures before and after are the same.
absl::StatusOr<CrashJudge::Listing> CrashJudge::List() {
  Listing listing;
  for (int i = 0; i < 200; ++i) {
    PAGODA_ASSIGN_OR_RETURN(const v1::StatusResponse before, daemon_.Status());
    PAGODA_ASSIGN_OR_RETURN(listing.pages, ListPages());
    grpc::ClientContext context;
    daemon_.Prepare(context);
    if (!daemon_.admin().ListModels(&context, v1::ListModelsRequest(), &listing.models).ok()) {
      return absl::UnavailableError("ListModels failed");
    }
    PAGODA_ASSIGN_OR_RETURN(listing.status, daemon_.Status());
    if (Level(before) == Level(listing.status) && before.pages() == listing.pages.size()) break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return listing;
}

// A dead daemon has one reason, however many questions it leaves open.
void CrashJudge::NoAnswer(const std::string& what) {
  const int code = daemon_.AwaitExit(kDying);
  if (code == kCrashExitCode) return;  // as asked: reading damaged pages deletes them, too
  Wrong(code < 0 ? what : absl::StrCat("died by itself while it was read, exit code ", code));
}

absl::Status CrashJudge::Connect(int stream) {
  const absl::Duration until = SystemClock().Monotonic() + kPatience;
  absl::Status status;
  do {
    status = clients_[stream]->WaitConnected(absl::Seconds(1));
  } while (!status.ok() && daemon_.AwaitExit(absl::ZeroDuration()) < 0 &&
           SystemClock().Monotonic() < until);
  return status;
}

void CrashJudge::JudgeSums(const Listing& listing, bool damaged) {
  int64_t host = 0;
  int64_t ssd = 0;
  std::map<std::string, int64_t> by_model;
  for (const v1::PageRecord& page : listing.pages) {
    const auto bytes = static_cast<int64_t>(page.bytes());
    for (const int tier : page.tiers()) (tier == v1::TIER_HOST ? host : ssd) += bytes;
    by_model[page.identity()] += bytes;
  }
  const auto expect = [this](const std::string& what, int64_t accounted, int64_t sum) {
    if (accounted == sum) return;
    Wrong(absl::StrFormat("I3 %s: %d accounted, the pages sum up to %d", what, accounted, sum));
  };
  // Nothing has been loaded yet, so every page has one copy, on SSD.
  expect("host bytes", TierBytes(listing.status, v1::TIER_HOST), host);
  expect("ssd bytes", TierBytes(listing.status, v1::TIER_SSD), ssd);
  expect("pages", static_cast<int64_t>(listing.status.pages()),
         static_cast<int64_t>(listing.pages.size()));
  expect("staged bytes", static_cast<int64_t>(listing.status.staged_bytes()), 0);
  for (const v1::ModelStatus& model : listing.models.models()) {
    expect("bytes of model " + model.model(),
           static_cast<int64_t>(model.host_bytes() + model.ssd_bytes()),
           by_model[model.identity()]);
  }
  for (const auto& [name, value] : listing.status.counters()) {
    if (!damaged && value > 0 && absl::StartsWith(name, "pagoda_integrity_failures_total")) {
      Wrong(absl::StrCat("I2 nobody damaged anything, but ", name, " is ", value));
    }
  }
}

void CrashJudge::JudgeOrigins(const Listing& listing, const CrashHistory& history) {
  for (const v1::PageRecord& page : listing.pages) {
    const auto known = history.offered.find(Hex(page.key()));
    if (known == history.offered.end()) {
      Wrong("I2 a page that nobody offered: " + Hex(page.key()));
    } else if (known->second.identity != Hex(page.identity()) ||
               known->second.scope != Hex(page.scope_id())) {
      Wrong("I5 a page of another scope or model than it was offered with: " + Hex(page.key()));
    }
  }
}

void CrashJudge::JudgeDocument(int stream, int document, const client::ScopeInfo& scope,
                               const std::vector<PageKey>& keys, int64_t listed,
                               const CrashHistory& history, bool damaged) {
  const std::string name = absl::StrCat("stream ", stream, " document ", document);
  const SyntheticDocument pages = CrashDocument(stream, document);
  client::LookupQuery query;
  query.chains = {{scope.id, keys}};
  query.precision_min = Precision::kQ2;
  query.fidelity_min = Precision::kQ2;
  auto hit = clients_[stream]->Lookup(query);
  // A machine too busy to keep a session alive is no fault of the daemon's.
  for (int i = 0; i < 2 && absl::IsUnavailable(hit.status()) && Connect(stream).ok(); ++i) {
    hit = clients_[stream]->Lookup(query);
  }
  if (!hit.ok()) return NoAnswer(absl::StrCat(name, ": lookup: ", hit.status().ToString()));
  const auto found = static_cast<int64_t>(hit->pages.size());
  if (!damaged && found != listed) {
    Wrong(absl::StrCat("I2 ", name, ": ", listed, " pages listed, ", found, " found"));
  }
  if (found == 0) return;
  const auto fetched = clients_[stream]->Fetch(*hit, keys, {});
  clients_[stream]->Release(hit->lease);
  if (!fetched.ok()) {
    return NoAnswer(absl::StrCat(name, ": fetch: ", fetched.status().ToString()));
  }
  for (size_t i = 0; i < fetched->pages.size(); ++i) {
    const client::FetchedPage& page = fetched->pages[i];
    const auto logged = history.offered.find(keys[i].hex());
    const bool right = logged != history.offered.end() && page.header.record.key == keys[i] &&
                       page.header.scope == scope.id &&
                       page.header.identity == IdentityOf(pages.model()) &&
                       page.header.content_hash.hex() == logged->second.content &&
                       pages.Matches(page, static_cast<int>(i));
    if (!right) Wrong(absl::StrCat("I1 ", name, " page ", i, ": not what was pushed"));
    verdict_.hits += right ? 1 : 0;
  }
  const int64_t missing = found - static_cast<int64_t>(fetched->pages.size());
  verdict_.misses += missing;
  const bool no_room = fetched->status.code() == absl::StatusCode::kResourceExhausted;
  if (missing > 0 && !damaged && !no_room) {
    NoAnswer(absl::StrCat("I2 ", name, ": ", missing,
                          " pages found but not readable: ", fetched->status.ToString()));
  }
}

void CrashJudge::JudgeStream(int stream, const Listing& listing, const CrashHistory& history,
                             bool damaged) {
  if (absl::Status status = Connect(stream); !status.ok()) {
    return NoAnswer(absl::StrCat("stream ", stream, " cannot connect: ", status.ToString()));
  }
  const auto scope = clients_[stream]->FindScope(CrashStreams()[stream].scope);
  if (!scope.has_value()) return Wrong(absl::StrCat("stream ", stream, " has lost its scope"));
  std::map<int, int64_t> listed;  // pages of each document
  for (const v1::PageRecord& page : listing.pages) {
    const auto known = history.offered.find(Hex(page.key()));
    if (known != history.offered.end() && known->second.stream == stream) {
      ++listed[known->second.document];
    }
  }
  for (int document = 0; document < kCrashDocuments && daemon_.pid() > 0; ++document) {
    const std::vector<PageKey> keys = CrashDocument(stream, document).KeysFrom(scope->root);
    JudgeDocument(stream, document, *scope, keys, listed[document], history, damaged);
  }
}

void CrashJudge::JudgeForeignScope(const CrashHistory& history) {
  const int stranger = static_cast<int>(CrashStreams().size()) - 1;  // beta
  const auto scope = clients_[stranger]->FindScope(CrashStreams()[stranger].scope);
  if (!scope.has_value()) return;
  client::LookupQuery query;
  query.precision_min = Precision::kQ2;
  query.fidelity_min = Precision::kQ2;
  query.peek = true;
  for (const auto& [hex, page] : history.offered) {
    if (page.stream == stranger || page.index != 0) continue;
    const auto key = PageKey::FromBytes(absl::HexStringToBytes(hex));
    query.chains = {{scope->id, {*key}}};
    const auto hit = clients_[stranger]->Lookup(query);
    if (hit.ok() && !hit->pages.empty()) Wrong("I5 another scope's page was found: " + hex);
  }
}

Verdict CrashJudge::Judge(const CrashHistory& history, bool damaged) {
  verdict_ = Verdict();
  for (const std::string& line : history.wrong) Wrong("I1 the writer saw " + line);
  const absl::StatusOr<Listing> listing = List();
  if (!listing.ok()) {
    NoAnswer("no list after the restart: " + listing.status().ToString());
    return std::move(verdict_);
  }
  verdict_.pages = static_cast<int64_t>(listing->pages.size());
  JudgeSums(*listing, damaged);
  JudgeOrigins(*listing, history);
  for (int stream = 0; stream < static_cast<int>(clients_.size()) && daemon_.pid() > 0; ++stream) {
    JudgeStream(stream, *listing, history, damaged);
  }
  JudgeForeignScope(history);
  return std::move(verdict_);
}

}  // namespace pagoda
