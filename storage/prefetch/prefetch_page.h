// Words that all parts of prefetching share: how a page is named, and who asks for it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace pagoda::prefetch {

// A page as the owner of the scheduler names it; 0 is none. The store puts a directory slot and its
// incarnation here, so that a page that went and came back is another one.
using PageId = uint64_t;
constexpr PageId kNoPage = 0;

// Why a page is brought up, in falling priority. The first two have real deadlines and share the
// first rank; the others guess.
enum class Source : uint8_t {
  kSequence = 0,  // a request that runs needs it at a later layer
  kHint = 1,      // a client said that a request will come
  kReturn = 2,    // a conversation is about to continue
  kNextPage = 3,  // it followed the page just used, often
  kHotness = 4,   // it was demoted although it is used much
};
constexpr int kSourceCount = 5;

constexpr absl::string_view SourceName(Source source) {
  constexpr absl::string_view kNames[] = {"sequence", "hint", "return", "next_page", "hotness"};
  return kNames[static_cast<int>(source)];
}

constexpr int RankOf(Source source) {
  return source <= Source::kHint ? 0 : static_cast<int>(source);
}

// Why a page that was asked for is not brought up.
enum class DropReason : uint8_t {
  kDeadline = 0,   // not reached in time
  kQueueFull = 1,  // others were more urgent
  kResident = 2,   // it is in memory, or on its way there, already
  kGone = 3,       // it is in no tier any more
  kCancelled = 4,  // who asked has gone
  kFailed = 5,     // the read failed, or there was no room when it came
};
constexpr int kDropReasonCount = 6;

constexpr absl::string_view DropReasonName(DropReason reason) {
  constexpr absl::string_view kNames[] = {"deadline", "queue_full", "resident",
                                          "gone",     "cancelled",  "failed"};
  return kNames[static_cast<int>(reason)];
}

}  // namespace pagoda::prefetch
