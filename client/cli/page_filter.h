// The flags that choose pages, for `pages`, `pin`, `unpin` and `evict`. All given flags must match.
//
// Threads  one
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "pagoda/v1/admin.pb.h"

namespace pagoda::cli {

struct PageFilterOptions {
  std::string key;       // hex of 32 bytes; every text empty: not asked
  std::string identity;  // hex of 32 bytes
  std::string scope_id;  // hex of 16 bytes
  std::string tier;
  std::string precision;
};

// --key, --identity, --scope-id, --tier, --precision, checked while parsing.
void AddPageFilterFlags(CLI::App& app, PageFilterOptions& options);

bool MatchesEverything(const PageFilterOptions& options);

// REQUIRES: the values passed the checks of the flags.
v1::PageFilter ToWire(const PageFilterOptions& options);

// "key 01ab..., tier ssd" or "every page": what a filter selects, for messages.
std::string Describe(const PageFilterOptions& options);

// "raw16", ...; a number that this build does not know is shown as one.
std::string PrecisionText(v1::Precision precision);

}  // namespace pagoda::cli
