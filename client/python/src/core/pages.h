// Pages for Python: what a lookup found, what a fetch brought, what is mapped. Segments are numpy
// views of the library's memory, which lives as long as a view of it does.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "client/client.h"
#include "shared_client.h"

namespace pagoda::python {

// A lookup's result. Its pages become Python objects when somebody looks at them.
struct Hit {
  client::LookupResult result;
  nanobind::object pages;
};

struct Page {
  explicit Page(client::FetchedPage fetched) : page(std::move(fetched)) {}
  Page(Page&&) = default;  // alone: buffers are not copied
  client::FetchedPage page;
};

struct Fetched {
  nanobind::list pages;
  nanobind::object error;
  int64_t bytes = 0;
};
Fetched FetchedOf(client::FetchResult result);

// Keeps its client, and with it the lease.
class Mapped {
 public:
  Mapped(std::unique_ptr<client::MappedPages> pages, std::shared_ptr<SharedClient> client)
      : pages_(std::move(pages)), client_(std::move(client)) {}
  ~Mapped();
  Mapped(Mapped&&) = default;

  const client::MappedPages& pages() const { return *pages_; }

 private:
  std::unique_ptr<client::MappedPages> pages_;
  std::shared_ptr<SharedClient> client_;
};

void RegisterPages(nanobind::module_& module);

}  // namespace pagoda::python
