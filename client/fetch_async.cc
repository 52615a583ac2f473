#include "client/client.h"

namespace pagoda::client {

std::future<absl::StatusOr<FetchResult>> Client::FetchAsync(const LookupResult& hit,
                                                            absl::Span<const PageKey> keys,
                                                            const FetchOptions& options) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<FetchResult>>>();
  std::future<absl::StatusOr<FetchResult>> future = promise->get_future();
  FetchThen(hit, keys, options, [promise](absl::StatusOr<FetchResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

}  // namespace pagoda::client
