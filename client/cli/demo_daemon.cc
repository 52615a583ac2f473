#include "client/cli/demo_daemon.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/interrupt.h"
#include "storage/base/clock.h"
#include "storage/base/digest.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr char kOperator[] = "operator";
constexpr size_t kSocketPathMax = 107;  // sockaddr_un
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(30);
constexpr absl::Duration kFlushTimeout = absl::Seconds(60);
constexpr absl::Duration kEncodeTimeout = absl::Seconds(120);

absl::StatusOr<std::string> RandomToken() {
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(random.data()), random.size()));
}

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

}  // namespace

absl::StatusOr<std::unique_ptr<DemoDaemon>> DemoDaemon::Start(int64_t host_bytes) {
  PAGODA_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Make("pagoda-demo-"));
  std::unique_ptr<DemoDaemon> daemon(new DemoDaemon(std::move(folder)));
  PAGODA_ASSIGN_OR_RETURN(daemon->program_, ProgramBesideThisOne("pagodad"));
  const std::string socket = daemon->folder_.File("pagodad.sock");
  if (socket.size() > kSocketPathMax) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the socket %s has %d characters, at most %d are possible; set TMPDIR to a shorter folder",
        socket, socket.size(), kSocketPathMax));
  }
  daemon->address_ = absl::StrCat("unix:", socket);
  PAGODA_RETURN_IF_ERROR(daemon->WriteSettings(host_bytes));
  PAGODA_RETURN_IF_ERROR(daemon->Launch());
  return daemon;
}

absl::Status DemoDaemon::WriteSettings(int64_t host_bytes) {
  std::string entries = "tokens:\n";
  for (const std::string tenant : {kPublisher, kReaders[0], kReaders[1], kOperator}) {
    PAGODA_ASSIGN_OR_RETURN(tokens_[tenant], RandomToken());
    absl::StrAppendFormat(&entries, "  - {token: \"%s\", tenant: %s, publish: %s, admin: %s}\n",
                          tokens_[tenant], tenant, tenant == kPublisher ? "true" : "false",
                          tenant == kOperator ? "true" : "false");
  }
  PAGODA_RETURN_IF_ERROR(folder_.WriteFile("tokens.yaml", entries));
  return folder_.WriteFile(
      "pagodad.yaml",
      absl::StrFormat("listen: \"%s\"\n"
                      "metrics_listen: none\n"
                      "data_dir: \"%s\"\n"
                      "token_file: \"%s\"\n"
                      "ladder: raw16\n"
                      "host: {capacity: %d}\n"
                      "ssd: {capacity: \"4GiB\"}\n",
                      address_, folder_.File("data"), folder_.File("tokens.yaml"), host_bytes));
}

AdminConnection DemoDaemon::Admin() const {
  ConnectionOptions options;
  options.daemon = address_;
  options.token = tokens_.at(kOperator);
  options.timeout_seconds = 10;
  return AdminConnection(options);
}

absl::Status DemoDaemon::Launch() {
  PAGODA_ASSIGN_OR_RETURN(
      process_,
      DaemonProcess::Start(
          {program_, {"--config", folder_.File("pagodad.yaml")}, folder_.File("pagodad.log")}));
  const double end = Now() + absl::ToDoubleSeconds(kStartTimeout);
  AdminConnection admin = Admin();
  while (true) {
    const absl::Status status = admin.Status().status();
    if (status.ok()) return status;
    PAGODA_RETURN_IF_ERROR(process_->CheckAlive());
    if (Now() > end) return status;
    if (!SleepUnlessInterrupted(absl::Milliseconds(20))) return CheckInterrupted();
  }
}

absl::StatusOr<double> DemoDaemon::Restart() {
  AdminConnection admin = Admin();
  v1::FlushRequest request;
  request.set_timeout_seconds(absl::ToDoubleSeconds(kFlushTimeout));
  PAGODA_ASSIGN_OR_RETURN(const v1::FlushResponse flushed,
                          admin.Call(&v1::Admin::Stub::Flush, request, kFlushTimeout));
  if (flushed.pages_unpersisted() > 0) {
    return absl::DeadlineExceededError(
        absl::StrFormat("%d pages did not reach the SSD tier", flushed.pages_unpersisted()));
  }
  PAGODA_RETURN_IF_ERROR(process_->Stop(kStopTimeout));
  const double start = Now();
  PAGODA_RETURN_IF_ERROR(Launch());
  return Now() - start;
}

absl::StatusOr<DemoDaemon::Encoded> DemoDaemon::Encode(const Identity& identity,
                                                       Precision precision) {
  AdminConnection admin = Admin();
  v1::SetLadderRequest ladder;
  ladder.set_identity(std::string(identity.view()));
  ladder.set_ladder(ToWire(precision));
  PAGODA_RETURN_IF_ERROR(admin.Call(&v1::Admin::Stub::SetLadder, ladder).status());
  v1::ListPagesRequest list;
  list.mutable_filter()->set_identity(std::string(identity.view()));
  list.mutable_filter()->set_tier(v1::TIER_HOST);
  list.set_limit(100000);
  const double end = Now() + absl::ToDoubleSeconds(kEncodeTimeout);
  while (true) {
    PAGODA_RETURN_IF_ERROR(process_->CheckAlive());
    PAGODA_ASSIGN_OR_RETURN(const std::vector<v1::PageRecord> pages, admin.Pages(list));
    Encoded encoded;
    for (const v1::PageRecord& page : pages) {
      if (page.precision() != ToWire(precision)) continue;
      ++encoded.pages;
      encoded.bytes += static_cast<int64_t>(page.bytes());
    }
    if (!pages.empty() && encoded.pages == static_cast<int64_t>(pages.size())) return encoded;
    if (Now() > end) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "%d of %d pages in host memory are %s after %s", encoded.pages, pages.size(),
          PrecisionName(precision), absl::FormatDuration(kEncodeTimeout)));
    }
    if (!SleepUnlessInterrupted(absl::Milliseconds(50))) return CheckInterrupted();
  }
}

}  // namespace pagoda::cli
