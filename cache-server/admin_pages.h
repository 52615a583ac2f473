// Admin calls over many pages: which pages a filter means, how they are listed, pinned, evicted,
// and what models they belong to. Each walks over all pages once.
//
// Threads  any; run as admin jobs, as a walk over millions of pages takes a while
// Errors   INVALID_ARGUMENT  a field of the filter;  NOT_FOUND  no page matched
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/admin.pb.h"

namespace pagoda {

// All set fields must match. The key of the wire names every record of that key.
struct AdminFilter {
  PageFilter store;
  std::optional<PageKey> key;
  bool Matches(const PageInfo& page) const {
    return (!key || *key == page.record.key) && store.Matches(page);
  }
};
absl::StatusOr<AdminFilter> ParseFilter(const v1::PageFilter& filter);

// In batches of at most 512 pages.
absl::StatusOr<std::vector<v1::ListPagesResponse>> ListPages(ServiceContext& context,
                                                             const v1::ListPagesRequest& request);
absl::Status PinPages(ServiceContext& context, const v1::PageFilter& filter, bool pin,
                      uint64_t& pages);
absl::Status EvictPages(ServiceContext& context, const v1::PageFilter& filter,
                        v1::EvictResponse& response);
void ListModels(ServiceContext& context, v1::ListModelsResponse& response);

}  // namespace pagoda
