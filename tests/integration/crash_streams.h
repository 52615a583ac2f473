// What the crash loop pushes: a few streams of documents, each of its own tenant, scope, model and
// ladder, and the log in which a writer says what it offered and what was acknowledged.
//
//   offer  STREAM DOCUMENT PAGE KEY IDENTITY SCOPE CONTENT     before the page is sent
//   stored STREAM DOCUMENT PAGE                                 after its acknowledgement
//   wrong  what                                                 the writer itself saw a wrong byte
//
// The log is append-only, one write() for a group of lines, so that a killed writer leaves at most
// one torn line at its end.
//
// Threads  CrashLog::Append from any thread; the rest is pure
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "storage/base/precision.h"
#include "storage/base/scope.h"
#include "tests/integration/synthetic_pages.h"

namespace pagoda {

struct CrashStream {
  const char* token;
  Scope scope;
  const char* model;  // its ladder is in CrashConfigYaml()
  kernels::PageShape shape;
};

absl::Span<const CrashStream> CrashStreams();
constexpr int kCrashDocuments = 32;     // of each stream
constexpr int kCrashDocumentPages = 8;  // of each document
SyntheticDocument CrashDocument(int stream, int document);
// A document that is pushed with false checksums: no page of it may ever be seen.
SyntheticDocument PoisonDocument(int stream, int document);
// The token of who may call Admin.
const char* CrashAdminToken();

// Contents of the daemon's files: budgets far below what the streams hold, so that pages are
// demoted, evicted and deleted all the time.
std::string CrashTokensYaml();
std::string CrashConfigYaml(const std::string& token_file);

// What the log says of one page.
struct LoggedPage {
  int stream = 0;
  int document = 0;
  int index = 0;
  std::string identity;
  std::string scope;
  std::string content;  // ContentHash of what was pushed, as hex like the others
  bool stored = false;
};

struct CrashHistory {
  absl::flat_hash_map<std::string, LoggedPage> offered;  // by key, as hex
  std::vector<std::string> wrong;
  int64_t stored_count = 0;
};
// Reads the whole log. Torn lines are passed over.
CrashHistory ReadCrashLog(const std::string& path);

class CrashLog {
 public:
  explicit CrashLog(const std::string& path);
  ~CrashLog();
  CrashLog(const CrashLog&) = delete;
  CrashLog& operator=(const CrashLog&) = delete;
  void Append(const std::string& lines) const;

 private:
  const int fd_;
};

}  // namespace pagoda
