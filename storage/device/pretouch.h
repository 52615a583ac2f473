// Memory that is there before it is needed: pages of fresh maps are made by several threads at
// once, huge where the system has such. Registering memory with a GPU makes its pages too, but one
// after the other: 500 GB took others 121 s, and 21 to 27 s when all cores had touched them before.
//
// Units      bytes
// Threads    pure functions over memory that nobody else writes yet; Pretouch makes its own threads
//            and returns when they are done
// Errors     UNAVAILABLE  the system has no such pages, or refuses; plain pages are the fallback,
//            and the memory is as good as before
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/base/bytes.h"
#include "storage/base/unique_fd.h"

namespace pagoda {

struct PretouchOptions {
  int threads = 0;                          // 0: as many as cores, at most 16
  int64_t slice_bytes = int64_t{64} << 20;  // what a thread takes at a time
};

// Makes every page of the ranges; their bytes stay. Ranges begin at a page.
absl::Status Pretouch(absl::Span<const MutableByteSpan> ranges, const PretouchOptions& options);

// Asks for transparent huge pages; before Pretouch. A range shorter than one has none.
absl::Status AdviseHugePages(MutableByteSpan range);

// A sealable memfd of the system's reserved huge pages (vm.nr_hugepages, or a pod's hugepages-2Mi).
// UNAVAILABLE when fewer are free than `bytes` needs. `bytes` is a multiple of 2 MiB.
absl::StatusOr<UniqueFd> HugeMemfd(const char* name, int64_t bytes);

}  // namespace pagoda
