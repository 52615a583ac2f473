#include "page_fetch.h"

#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "convert.h"
#include "gil.h"
#include "pages.h"
#include "storage/base/status_macros.h"

namespace pagoda::python {
namespace nb = nanobind;
using nb::literals::operator""_a;

absl::StatusOr<std::shared_ptr<client::PageFetch>> FetchState::Get() const {
  absl::MutexLock lock(&mutex_);
  if (fetch_.get() == nullptr || fetch_.forked()) {
    return absl::FailedPreconditionError("the fetch is over: waited for, or its client was closed");
  }
  return fetch_.get();
}

void FetchState::Cancel() {
  const absl::StatusOr<std::shared_ptr<client::PageFetch>> fetch = Get();
  if (fetch.ok()) (*fetch)->Cancel();
}

void FetchState::Close() {
  Cancel();
  std::shared_ptr<client::PageFetch> fetch;
  absl::MutexLock lock(&mutex_);
  fetch = fetch_.Take();
}

absl::StatusOr<client::FetchResult> FetchState::Finish() {
  absl::MutexLock turn(&turn_);
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<client::PageFetch> fetch, Get());
  client::FetchResult result = fetch->Wait();
  absl::MutexLock lock(&mutex_);
  fetch_.Reset();
  return result;
}

Fetch::~Fetch() {
  if (state_ == nullptr) return;
  WithoutGil([this] {
    state_->Close();
    state_ = nullptr;
    client_ = nullptr;
  });
}

void RegisterPageFetch(nb::module_& module) {
  nb::class_<Fetch>(module, "PageFetch", "A fetch under way, layer by layer.")
      .def(
          "wait_headers",
          [](Fetch& self, double timeout) {
            const absl::Duration limit = SecondsOf(timeout, "timeout");
            return ValueOrRaise(WithoutGil([&] {
              return self.state().Wait(
                  [limit](client::PageFetch& fetch) { return fetch.WaitHeaders(limit); });
            }));
          },
          "timeout"_a, "Headers of the pages that are coming, in order.")
      .def(
          "wait_layer",
          [](Fetch& self, uint32_t layer, double timeout) {
            const absl::Duration limit = SecondsOf(timeout, "timeout");
            RaiseIfError(WithoutGil([&] {
              return self.state().Wait([layer, limit](client::PageFetch& fetch) {
                return fetch.WaitLayer(layer, limit);
              });
            }));
          },
          "layer"_a, "timeout"_a, "Until all of those pages have this layer and those before it.")
      .def(
          "wait",
          [](Fetch& self) {
            return FetchedOf(ValueOrRaise(WithoutGil([&] { return self.state().Finish(); })));
          },
          "The whole of it. The last call.")
      .def("cancel", [](Fetch& self) { WithoutGil([&] { self.state().Cancel(); }); });
}

}  // namespace pagoda::python
