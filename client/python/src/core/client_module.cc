#include "client_module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "convert.h"
#include "gil.h"
#include "page_fetch.h"
#include "pages.h"
#include "pusher.h"
#include "shared_client.h"
#include "storage/base/status_macros.h"
#include "wait.h"

namespace pagoda::python {
namespace nb = nanobind;
using nb::literals::operator""_a;
namespace {

class PyClient {
 public:
  explicit PyClient(std::shared_ptr<SharedClient> client) : client_(std::move(client)) {}
  ~PyClient() {
    if (client_ != nullptr) WithoutGil([this] { client_ = nullptr; });
  }
  PyClient(PyClient&&) = default;

  const std::shared_ptr<SharedClient>& shared() const { return client_; }

  // Without the GIL: a call of the library that may fail.
  template <typename F>
  auto Call(F&& function) const -> decltype(function(std::declval<client::Client&>())) {
    return WithoutGil([&]() -> decltype(function(std::declval<client::Client&>())) {
      PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<client::Client> client, client_->Get());
      return function(*client);
    });
  }
  // One that cannot: raises only where the client is closed.
  template <typename F>
  void Do(F&& function) const {
    RaiseIfError(Call([&](client::Client& client) {
      function(client);
      return absl::OkStatus();
    }));
  }
  template <typename F>
  auto Read(F&& function) const {
    using Value = decltype(function(std::declval<client::Client&>()));
    return ValueOrRaise(
        Call([&](client::Client& client) -> absl::StatusOr<Value> { return function(client); }));
  }

 private:
  std::shared_ptr<SharedClient> client_;
};

void MakeClient(PyClient* self, std::string target, const ModelSpec* model, uint32_t page_tokens,
                std::string token, std::string shm_socket, std::string client_name,
                uint64_t backend_tag, double connect_timeout, double control_timeout,
                double transfer_timeout, double reconnect_interval, int64_t push_queue_bytes_max,
                int64_t push_staging_bytes, std::string tls_ca, std::string tls_certificate,
                std::string tls_key, bool insecure) {
  client::ClientOptions options;
  options.target = std::move(target);
  if (model != nullptr) options.model = *model;
  options.page_tokens = page_tokens;
  options.token = std::move(token);
  options.shm_socket = std::move(shm_socket);
  options.client_name = std::move(client_name);
  options.backend_tag = backend_tag;
  options.connect_timeout = SecondsOf(connect_timeout, "connect_timeout");
  options.control_timeout = SecondsOf(control_timeout, "control_timeout");
  options.transfer_timeout = SecondsOf(transfer_timeout, "transfer_timeout");
  options.reconnect_interval = SecondsOf(reconnect_interval, "reconnect_interval");
  options.push_queue_bytes_max = push_queue_bytes_max;
  options.push_staging_bytes = push_staging_bytes;
  options.tls.ca = std::move(tls_ca);
  options.tls.certificate = std::move(tls_certificate);
  options.tls.key = std::move(tls_key);
  options.tls.insecure = insecure;
  new (self)
      PyClient(ValueOrRaise(WithoutGil([&] { return SharedClient::Open(std::move(options)); })));
}

void WaitConnected(const PyClient& self, double timeout) {
  WaitInSteps(SecondsOf(timeout, "timeout"), [&](absl::Duration step) -> absl::Status {
    PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<client::Client> client, self.shared()->Get());
    return client->WaitConnected(step);
  });
}

std::optional<client::ScopeInfo> FindScope(const PyClient& self, const std::string& name) {
  const Scope scope = ValueOrRaise(ParseScope(name));
  return self.Read([&](client::Client& client) { return client.FindScope(scope); });
}

Hit Lookup(const PyClient& self, const client::ScopeInfo& scope, nb::handle keys,
           const std::string& precision_min, const std::string& fidelity_min, nb::handle parts,
           const nb::bytes& request_id, const nb::bytes& sequence_id, bool peek) {
  client::LookupQuery query;
  query.chains.push_back({scope.id, KeysOf(keys)});
  query.precision_min = PrecisionOf(precision_min, "precision_min");
  query.fidelity_min = PrecisionOf(fidelity_min, "fidelity_min");
  query.parts = PartsOf(parts);
  query.request_id = OptionalIdOf<client::RequestId>(request_id, "request_id");
  query.sequence_id = OptionalIdOf<client::SequenceId>(sequence_id, "sequence_id");
  query.peek = peek;
  return {ValueOrRaise(self.Call([&](client::Client& client) { return client.Lookup(query); })),
          {}};
}

// What to fetch or map, out of Python's arguments.
struct Wanted {
  std::vector<PageKey> keys;
  client::FetchOptions options;
};
Wanted WantedOf(nb::handle keys, uint32_t begin, uint32_t count) {
  Wanted wanted;
  wanted.keys = KeysOf(keys);
  wanted.options.page_begin = begin;
  wanted.options.page_count = count;
  return wanted;
}

nb::object FetchPages(const PyClient& self, const Hit& hit, nb::handle keys, uint32_t begin,
                      uint32_t count, const std::optional<std::string>& precision_max) {
  Wanted wanted = WantedOf(keys, begin, count);
  if (precision_max.has_value()) {
    wanted.options.precision_max = PrecisionOf(*precision_max, "precision_max");
  }
  return nb::cast(FetchedOf(ValueOrRaise(self.Call([&](client::Client& client) {
    return client.Fetch(hit.result, wanted.keys, wanted.options);
  }))));
}

// A pointer that keeps the client that made the object, and drops it after that.
template <typename T>
std::shared_ptr<T> WithItsClient(std::unique_ptr<T> object,
                                 std::shared_ptr<client::Client> client) {
  return std::shared_ptr<T>(object.release(),
                            [client = std::move(client)](T* made) { delete made; });
}

Fetch StartFetch(const PyClient& self, const Hit& hit, nb::handle keys, uint32_t begin,
                 uint32_t count) {
  const Wanted wanted = WantedOf(keys, begin, count);
  const auto start = [&]() -> absl::StatusOr<std::shared_ptr<FetchState>> {
    PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<client::Client> client, self.shared()->Get());
    PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<client::PageFetch> fetch,
                            client->StartFetch(hit.result, wanted.keys, wanted.options));
    auto state = std::make_shared<FetchState>(WithItsClient(std::move(fetch), std::move(client)));
    self.shared()->CloseWithThis(state);
    return state;
  };
  return {ValueOrRaise(WithoutGil(start)), self.shared()};
}

Mapped Map(const PyClient& self, const Hit& hit, nb::handle keys, uint32_t begin, uint32_t count) {
  const Wanted wanted = WantedOf(keys, begin, count);
  return {ValueOrRaise(self.Call([&](client::Client& client) {
            return client.Map(hit.result, wanted.keys, wanted.options);
          })),
          self.shared()};
}

client::LeaseId LeaseOf(nb::handle lease) {
  if (nb::isinstance<nb::bytes>(lease)) {
    return IdOf<client::LeaseId>(nb::borrow<nb::bytes>(lease), "lease");
  }
  return nb::cast<const Hit&>(lease).result.lease;
}

void Prefetch(const PyClient& self, const client::ScopeInfo& scope, nb::handle keys,
              double deadline, nb::handle parts) {
  const std::vector<client::ScopeChain> chains = {{scope.id, KeysOf(keys)}};
  const absl::Duration limit = SecondsOf(deadline, "deadline");
  const std::vector<client::PagePart> wanted = PartsOf(parts);
  RaiseIfError(
      self.Call([&](client::Client& client) { return client.Prefetch(chains, limit, wanted); }));
}

PyPusher OpenPusher(const PyClient& self, const nb::bytes& sequence_id, nb::object callback) {
  const auto sequence = OptionalIdOf<client::SequenceId>(sequence_id, "sequence_id");
  if (!callback.is_none() && PyCallable_Check(callback.ptr()) == 0) {
    throw nb::type_error("callback: a function of a key and an outcome is expected");
  }
  const auto state = std::make_shared<PusherState>(!callback.is_none());
  if (!callback.is_none()) state->set_callback(std::move(callback));
  PyPusher pusher(state, self.shared());
  const auto open = [&]() -> absl::Status {
    PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<client::Client> client, self.shared()->Get());
    PAGODA_ASSIGN_OR_RETURN(
        std::unique_ptr<client::Pusher> opened,
        client->OpenPusher(sequence, [state](const PageKey& key, const auto& outcome) {
          state->Answered(key, outcome);
        }));
    state->Open(WithItsClient(std::move(opened), std::move(client)));
    self.shared()->CloseWithThis(state);
    return absl::OkStatus();
  };
  RaiseIfError(WithoutGil(open));
  return pusher;
}

nb::dict Stats(const PyClient& self) {
  const client::ClientStats stats =
      self.Read([](client::Client& client) { return client.stats(); });
  nb::dict result;
  result["lookups"] = stats.lookups;
  result["lookup_failures"] = stats.lookup_failures;
  result["fetched_pages"] = stats.fetched_pages;
  result["fetched_bytes"] = stats.fetched_bytes;
  result["fetch_failures"] = stats.fetch_failures;
  result["shm_pages"] = stats.shm_pages;
  result["shm_fallbacks"] = stats.shm_fallbacks;
  result["mapped_pages"] = stats.mapped_pages;
  result["pushed_pages"] = stats.pushed_pages;
  result["shm_pushed_pages"] = stats.shm_pushed_pages;
  result["shm_push_fallbacks"] = stats.shm_push_fallbacks;
  result["push_failures"] = stats.push_failures;
  result["reconnects"] = stats.reconnects;
  return result;
}

void AddSession(nb::class_<PyClient>& type) {
  type.def("__init__", &MakeClient, "target"_a = "127.0.0.1:7070", "model"_a.none() = nb::none(),
           nb::kw_only(), "page_tokens"_a = 64, "token"_a = "", "shm_socket"_a = "",
           "client_name"_a = "pagoda-kv", "backend_tag"_a = 0, "connect_timeout"_a = 2.0,
           "control_timeout"_a = 1.0, "transfer_timeout"_a = 10.0, "reconnect_interval"_a = 0.5,
           "push_queue_bytes_max"_a = int64_t{256} << 20,
           "push_staging_bytes"_a = int64_t{64} << 20, "tls_ca"_a = "", "tls_certificate"_a = "",
           "tls_key"_a = "", "insecure"_a = false)
      .def("wait_connected", &WaitConnected, "timeout"_a,
           "Until the session is open; raises why it is not.")
      .def_prop_ro("connected",
                   [](const PyClient& self) {
                     return self.Read([](client::Client& client) { return client.connected(); });
                   })
      .def_prop_ro("server_info",
                   [](const PyClient& self) {
                     return self.Read([](client::Client& client) { return client.server_info(); });
                   })
      .def("scope", &FindScope, "name"_a = "private",
           "\"private\", \"group:NAME\" or \"public\"; None before the first session, or without a "
           "right to it.")
      .def("stats", &Stats)
      .def("path_lines",
           [](const PyClient& self) {
             return self.Read([](client::Client& client) { return client.stats().PathLines(); });
           })
      .def(
          "close", [](const PyClient& self) { WithoutGil([&] { self.shared()->Close(); }); },
          "Ends the session, its pushers and fetches; later calls raise.")
      .def("__enter__", [](nb::handle_t<PyClient> self) { return nb::borrow(self); })
      .def("__exit__", [](const PyClient& self, const nb::args&) {
        WithoutGil([&] { self.shared()->Close(); });
      });
}

void AddPages(nb::class_<PyClient>& type) {
  type.def("lookup", &Lookup, "scope"_a, "keys"_a, nb::kw_only(), "precision_min"_a = "raw16",
           "fidelity_min"_a = "raw16", "parts"_a = nb::make_tuple(),
           "request_id"_a = nb::bytes("", 0), "sequence_id"_a = nb::bytes("", 0), "peek"_a = false,
           "The longest prefix of the keys that is there, and a lease on it.")
      .def("fetch", &FetchPages, "hit"_a, "keys"_a, nb::kw_only(), "begin"_a = 0, "count"_a = 0,
           "precision_max"_a = nb::none(), "Pages of a hit, copied and verified.")
      .def("start_fetch", &StartFetch, "hit"_a, "keys"_a, nb::kw_only(), "begin"_a = 0,
           "count"_a = 0, "The same, layer by layer.")
      .def("map", &Map, "hit"_a, "keys"_a, nb::kw_only(), "begin"_a = 0, "count"_a = 0,
           "Pages of a hit in the daemon's own memory. UNAVAILABLE: fetch them instead.")
      .def(
          "release",
          [](const PyClient& self, nb::handle hit) {
            const client::LeaseId lease = LeaseOf(hit);
            self.Do([&](client::Client& client) { client.Release(lease); });
          },
          "hit"_a)
      .def(
          "renew",
          [](const PyClient& self, nb::handle hit) {
            const client::LeaseId lease = LeaseOf(hit);
            RaiseIfError(self.Call([&](client::Client& client) { return client.Renew(lease); }));
          },
          "hit"_a)
      .def("prefetch", &Prefetch, "scope"_a, "keys"_a, "deadline"_a, nb::kw_only(),
           "parts"_a = nb::make_tuple(), "Has what is on SSD come up to memory by then.")
      .def("pusher", &OpenPusher, "sequence_id"_a = nb::bytes("", 0),
           "callback"_a.none() = nb::none());
}

void AddSequences(nb::class_<PyClient>& type) {
  type.def(
          "open_sequence",
          [](const PyClient& self, uint64_t length_tokens, uint32_t window_tokens,
             const std::string& word) {
            const Precision precision = PrecisionOf(word, "precision");
            const client::SequenceId id = self.Read([&](client::Client& client) {
              return client.OpenSequence(length_tokens, window_tokens, precision);
            });
            return PyBytes(id.view());
          },
          "length_tokens"_a, "window_tokens"_a, "precision"_a)
      .def(
          "advance_sequence",
          [](const PyClient& self, const nb::bytes& sequence_id, uint64_t length_tokens) {
            const auto id = IdOf<client::SequenceId>(sequence_id, "sequence_id");
            self.Do([&](client::Client& client) { client.AdvanceSequence(id, length_tokens); });
          },
          "sequence_id"_a, "length_tokens"_a)
      .def(
          "close_sequence",
          [](const PyClient& self, const nb::bytes& sequence_id) {
            const auto id = IdOf<client::SequenceId>(sequence_id, "sequence_id");
            self.Do([&](client::Client& client) { client.CloseSequence(id); });
          },
          "sequence_id"_a)
      .def(
          "report_ttft",
          [](const PyClient& self, const nb::bytes& sequence_id, double seconds,
             uint32_t prompt_tokens, uint32_t hit_tokens) {
            const auto id = OptionalIdOf<client::SequenceId>(sequence_id, "sequence_id");
            self.Do([&](client::Client& client) {
              client.ReportTtft(id, seconds, prompt_tokens, hit_tokens);
            });
          },
          "sequence_id"_a, "seconds"_a, "prompt_tokens"_a, "hit_tokens"_a);
}

}  // namespace

void RegisterClient(nb::module_& module) {
  nb::class_<PyClient> type(
      module, "Client",
      "One session with a pagodad. Begins to connect at once, and comes back\n"
      "by itself after the daemon was away; every error means a miss.");
  AddSession(type);
  AddPages(type);
  AddSequences(type);
}

}  // namespace pagoda::python
