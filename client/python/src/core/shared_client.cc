#include "shared_client.h"

#include <algorithm>

#include "storage/base/status_macros.h"

namespace pagoda::python {
namespace {

// Of this process; a forked child forgets those of its parent.
struct OpenClients {
  absl::Mutex mutex;
  int generation ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::weak_ptr<SharedClient>> clients ABSL_GUARDED_BY(mutex);
};
OpenClients& Open() {
  static auto* const open = new OpenClients;
  return *open;
}

template <typename T>
void DropEnded(std::vector<std::weak_ptr<T>>& pointers) {
  const auto ended = [](const std::weak_ptr<T>& pointer) { return pointer.expired(); };
  pointers.erase(std::remove_if(pointers.begin(), pointers.end(), ended), pointers.end());
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedClient>> SharedClient::Open(client::ClientOptions options) {
  PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<client::Client> client,
                          client::Client::Create(std::move(options)));
  std::shared_ptr<SharedClient> shared(new SharedClient(std::move(client)));
  OpenClients& open = python::Open();
  absl::MutexLock lock(&open.mutex);
  if (open.generation != ForkGeneration()) open.clients.clear();
  open.generation = ForkGeneration();
  DropEnded(open.clients);
  open.clients.push_back(shared);
  return shared;
}

absl::StatusOr<std::shared_ptr<client::Client>> SharedClient::Get() const {
  absl::MutexLock lock(&mutex_);
  if (client_.get() == nullptr) return absl::FailedPreconditionError("the client is closed");
  if (client_.forked()) {
    return absl::FailedPreconditionError(
        "the client was made before this process was forked, and its threads stayed behind: make "
        "another one here");
  }
  return client_.get();
}

void SharedClient::CloseWithThis(const std::shared_ptr<Closeable>& child) {
  {
    absl::MutexLock lock(&mutex_);
    if (client_.get() != nullptr) {
      DropEnded(children_);
      children_.push_back(child);
      return;
    }
  }
  child->Close();
}

void SharedClient::Close() {
  std::shared_ptr<client::Client> client;
  std::vector<std::weak_ptr<Closeable>> children;
  {
    absl::MutexLock lock(&mutex_);
    client = client_.Take();
    children.swap(children_);
  }
  for (const std::weak_ptr<Closeable>& weak : children) {
    if (const std::shared_ptr<Closeable> child = weak.lock()) child->Close();
  }
}

void CloseAllClients() {
  std::vector<std::weak_ptr<SharedClient>> clients;
  {
    OpenClients& open = Open();
    absl::MutexLock lock(&open.mutex);
    if (open.generation == ForkGeneration()) clients.swap(open.clients);
  }
  for (const std::weak_ptr<SharedClient>& weak : clients) {
    if (const std::shared_ptr<SharedClient> client = weak.lock()) client->Close();
  }
}

}  // namespace pagoda::python
