#include "tests/integration/crash_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr char kAcme[] = "crash-loop-token-of-acme";
constexpr char kBeta[] = "crash-loop-token-of-beta";
constexpr char kAdmin[] = "crash-loop-token-of-the-admin";
constexpr uint32_t kPoisonSeed = 1u << 30;

uint32_t SeedOf(int stream, int document) {
  return static_cast<uint32_t>(1000 * (stream + 1) + document);
}

}  // namespace

absl::Span<const CrashStream> CrashStreams() {
  // Pages of 64 to 384 KiB; the last shape has two segments a plane.
  static const auto* streams = new std::array<CrashStream, 4>{
      CrashStream{kAcme, {ScopeKind::kPrivate, ""}, "crash-raw16", {2, 2, 64, 64}},
      CrashStream{kAcme, {ScopeKind::kGroup, "legal"}, "crash-q8", {4, 2, 64, 64}},
      CrashStream{kAcme, {ScopeKind::kPublic, ""}, "crash-q4", {4, 1, 128, 64}},
      CrashStream{kBeta, {ScopeKind::kPrivate, ""}, "crash-q8", {12, 2, 64, 64}}};
  return *streams;
}

SyntheticDocument CrashDocument(int stream, int document) {
  const CrashStream& of = CrashStreams()[stream];
  return SyntheticDocument(of.shape, kCrashDocumentPages, SeedOf(stream, document), of.model);
}

SyntheticDocument PoisonDocument(int stream, int document) {
  const CrashStream& of = CrashStreams()[stream];
  return SyntheticDocument(of.shape, 1, kPoisonSeed + SeedOf(stream, document), of.model);
}

const char* CrashAdminToken() { return kAdmin; }

std::string CrashTokensYaml() {
  return absl::StrCat("tokens:\n  - {token: ", kAcme,
                      ", tenant: acme, groups: [legal], publish: true}\n  - {token: ", kBeta,
                      ", tenant: beta}\n  - {token: ", kAdmin,
                      ", tenant: ops, admin: true, push: false}\n");
}

std::string CrashConfigYaml(const std::string& token_file) {
  return absl::StrCat("token_file: ", token_file,
                      "\nhost:\n  capacity: 24MiB\n  chunk: 1MiB\nssd:\n  capacity: 64MiB\n"
                      "models:\n  crash-raw16: {ladder: raw16}\n  crash-q8: {ladder: q8}\n"
                      "  crash-q4: {ladder: q4}\nsession_timeout_seconds: 20\n"
                      "heartbeat_seconds: 1\n");
}

CrashHistory ReadCrashLog(const std::string& path) {
  CrashHistory history;
  std::ifstream file(path);
  std::string line;
  std::vector<std::string> key_of;  // by number of the page
  const auto number = [](const LoggedPage& page) {
    return static_cast<size_t>(
        (page.stream * kCrashDocuments + page.document) * kCrashDocumentPages + page.index);
  };
  key_of.resize(CrashStreams().size() * kCrashDocuments * kCrashDocumentPages);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind;
    LoggedPage page;
    words >> kind;
    if (kind == "wrong") {
      history.wrong.push_back(line);
      continue;
    }
    words >> page.stream >> page.document >> page.index;
    if (words.fail() || number(page) >= key_of.size()) continue;
    if (kind == "stored") {
      ++history.stored_count;
      const auto known = history.offered.find(key_of[number(page)]);
      if (known != history.offered.end()) known->second.stored = true;
    }
    if (kind != "offer") continue;
    std::string key;
    words >> key >> page.identity >> page.scope >> page.content;
    if (words.fail() || page.content.size() != 2 * ContentHash::kBytes) continue;
    key_of[number(page)] = key;
    history.offered.try_emplace(key, page);
  }
  return history;
}

CrashLog::CrashLog(const std::string& path)
    : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600)) {
  PAGODA_CHECK(fd_ >= 0);
  Append("\n");  // ends what a killed writer left
}

CrashLog::~CrashLog() { close(fd_); }

void CrashLog::Append(const std::string& lines) const {
  const ssize_t written = write(fd_, lines.data(), lines.size());
  PAGODA_CHECK(written == static_cast<ssize_t>(lines.size()));
}

}  // namespace pagoda
