// Looks at a daemon that has just come back, and says everything that is wrong with it, against the
// log of what was pushed. The numbers are those of the invariants:
//
//   I1  every page found comes back as exactly the logged bytes, under its key, model and scope
//   I2  only pages that were offered are there; nothing is broken that nobody damaged
//   I3  the tiers' figures are the sums over the pages, in all and per model and scope
//   I5  a key of one scope is a miss in another
//
// Threads    one.   Ownership  the daemon must outlive it
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "tests/integration/crash_streams.h"
#include "tests/integration/daemon_process.h"

namespace pagoda {

struct Verdict {
  std::vector<std::string> violations;
  int64_t pages = 0;   // there after the restart
  int64_t hits = 0;    // of them fetched and right
  int64_t misses = 0;  // found, then gone: damaged files, or no room to load them
};

class CrashJudge {
 public:
  explicit CrashJudge(DaemonProcess& daemon);
  ~CrashJudge();

  // `damaged`: somebody has damaged the daemon's files, so pages may break, but only into misses.
  Verdict Judge(const CrashHistory& history, bool damaged);

 private:
  struct Listing {
    v1::StatusResponse status;
    v1::ListModelsResponse models;
    std::vector<v1::PageRecord> pages;
  };
  absl::StatusOr<Listing> List();
  absl::StatusOr<std::vector<v1::PageRecord>> ListPages();
  // Until the session is there, or the daemon has ended.
  absl::Status Connect(int stream);
  void JudgeSums(const Listing& listing, bool damaged);
  void JudgeOrigins(const Listing& listing, const CrashHistory& history);
  void JudgeStream(int stream, const Listing& listing, const CrashHistory& history, bool damaged);
  void JudgeDocument(int stream, int document, const client::ScopeInfo& scope,
                     const std::vector<PageKey>& keys, int64_t listed, const CrashHistory& history,
                     bool damaged);
  void JudgeForeignScope(const CrashHistory& history);
  void NoAnswer(const std::string& what);
  void Wrong(std::string what) { verdict_.violations.push_back(std::move(what)); }

  DaemonProcess& daemon_;
  std::vector<std::unique_ptr<client::Client>> clients_;  // one for each stream
  Verdict verdict_;
};

}  // namespace pagoda
