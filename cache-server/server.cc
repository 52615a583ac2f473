#include "cache-server/server.h"

#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cache-server/admin_service.h"
#include "cache-server/cache_service.h"
#include "cache-server/data_folder.h"
#include "cache-server/gauge_collector.h"
#include "cache-server/grpc_listener.h"
#include "cache-server/listen_address.h"
#include "cache-server/master_secret.h"
#include "cache-server/page_encoding.h"
#include "cache-server/peer_links.h"
#include "cache-server/server_credentials.h"
#include "cache-server/shm_server.h"
#include "cache-server/token_file.h"
#include "cache-server/version.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int kAdminThreads = 2;
constexpr int64_t kAdminJobsMax = 16;
constexpr int64_t kFetchEncodesMax = 8192;  // two batches of the largest Fetch
constexpr absl::Duration kSessionGraceMax = absl::Seconds(3);

TieredStoreOptions StoreOptionsOf(const ServerOptions& options) {
  TieredStoreOptions store;
  store.host = options.host;
  if (options.ssd.enabled) store.ssd.path = options.ssd_path();
  store.ssd.capacity_bytes = options.ssd.capacity_bytes;
  store.policies = options.policies;
  store.prefetch = options.prefetch;
  store.leases.leases_per_session_max = options.limits.leases_per_session_max;
  return store;
}

SessionRegistry::Options SessionOptionsOf(const ServerOptions& options) {
  return {options.limits.sessions_max, options.limits.staged_pages_per_session_max,
          options.session_timeout};
}

Encoder::Options EncoderOptionsOf(const ServerOptions& options) {
  Encoder::Options encoder;
  encoder.threads = options.encode_threads;
  encoder.queue_pages_max = options.limits.encode_queue_pages_max;
  const absl::Duration idle = options.ladder.ShortestIdle();
  if (idle < absl::InfiniteDuration()) {
    encoder.idle_scan_period = std::clamp(idle / 4, absl::Seconds(1), absl::Minutes(1));
  }
  encoder.sequences.sequences_per_session_max = options.limits.sequences_per_session_max;
  return encoder;
}

std::vector<std::string> TenantsOf(const std::vector<TokenEntry>& tokens) {
  std::set<std::string> tenants;
  for (const TokenEntry& token : tokens) tenants.insert(token.tenant);
  if (tenants.empty()) tenants.insert("local");
  return {tenants.begin(), tenants.end()};
}

// Scopes of the token file, by id; those beyond the first 200 are one to metrics.
std::map<ScopeId, std::string> ScopeNamesOf(const std::vector<TokenEntry>& tokens) {
  constexpr size_t kNamesMax = 200;
  std::set<std::string> groups;
  for (const TokenEntry& token : tokens) groups.insert(token.groups.begin(), token.groups.end());
  std::vector<Scope> scopes = {{ScopeKind::kPublic, ""}};
  for (const std::string& group : groups) scopes.push_back({ScopeKind::kGroup, group});
  for (const std::string& tenant : TenantsOf(tokens)) {
    scopes.push_back({ScopeKind::kPrivate, tenant});
  }
  std::map<ScopeId, std::string> names;
  for (const Scope& scope : scopes) {
    if (names.size() < kNamesMax) names[ScopeIdOf(scope)] = ScopeName(scope);
  }
  return names;
}

std::vector<std::string> ModelsOf(const LadderOptions& ladder) {
  std::vector<std::string> models;
  for (const auto& [name, precision] : ladder.models) models.push_back(name);
  return models;
}

}  // namespace

// In the order of dependence: later members use earlier ones and go first.
struct Server::Parts {
  Parts(const ServerOptions& given, const Clock& given_clock, std::unique_ptr<DataFolder> taken,
        const std::vector<TokenEntry>& tokens, const std::string& secret)
      : options(given),
        clock(given_clock),
        folder(std::move(taken)),
        callers(tokens, secret),
        scope_names(ScopeNamesOf(tokens)),
        metrics(TenantsOf(tokens), ModelsOf(options.ladder)),
        models(options.ladder, options.limits.models_max, options.data_dir + "/models.json") {}

  const ServerOptions options;
  const Clock& clock;
  const std::unique_ptr<DataFolder> folder;
  const CallerTable callers;
  const std::map<ScopeId, std::string> scope_names;
  Metrics metrics;
  ModelRegistry models;
  std::unique_ptr<TieredStore> store;
  std::unique_ptr<Hbm> hbm;  // null: no device memory
  std::optional<Encoder> encoder;
  std::optional<SessionRegistry> sessions;
  std::optional<WorkQueue> fetch_encodes;
  std::optional<WorkQueue> admin_jobs;
  std::optional<ServiceContext> context;
  std::unique_ptr<PeerLinks> peers;  // null: no links to other GPUs
  std::optional<CacheService> cache_service;
  std::optional<AdminService> admin_service;
  std::unique_ptr<ShmServer> shm;
  GrpcListener listener;
  std::shared_ptr<GaugeCollector> gauges;
  std::string metrics_address = "none";
  std::unique_ptr<prometheus::Exposer> exposer;
  absl::Notification stop_sweeper;
  std::thread sweeper;
  bool shut_down = false;
  bool save_failed = false;  // of the sweeper: logged once

  absl::Status Open();
  void MakeServices(const std::string& instance_id, uint32_t instance_tag);
  PageForms FormsOfPages();
  absl::Status ExposeMetrics();
  absl::Status StartShm();
  absl::Status StartPeers();
  DaemonState State() const;
  void Sweep();
  absl::Status Shutdown(absl::Duration deadline);
};

absl::Status Server::Parts::Open() {
  absl::StatusOr<std::unique_ptr<TieredStore>> opened =
      TieredStore::Open(StoreOptionsOf(options), clock, &metrics);
  if (!opened.ok()) {
    return absl::Status(opened.status().code(), absl::StrCat("store: ", opened.status().message()));
  }
  store = *std::move(opened);
  // Workers find device memory through shared memory's socket, or by links.
  if (options.shm.enabled || options.hbm.peer_links_max > 0) {
    PAGODA_ASSIGN_OR_RETURN(hbm, Hbm::Open(options.hbm, *store));
  }
  models.Load();
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
  uint32_t instance_tag;
  std::memcpy(&instance_tag, random.data() + 16, sizeof(instance_tag));
  MakeServices(
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(random.data()), 16)),
      instance_tag);
  PAGODA_RETURN_IF_ERROR(StartPeers());
  PAGODA_RETURN_IF_ERROR(StartShm());
  PAGODA_RETURN_IF_ERROR(ExposeMetrics());
  PAGODA_ASSIGN_OR_RETURN(listener, ListenGrpc(options, {&*cache_service, &*admin_service}));
  admin_service->set_listen(listener.address);
  listener.SetServing(true);
  PAGODA_RETURN_IF_ERROR(
      listener.Accept([this](absl::string_view reason) { metrics.OnConnectionRefused(reason); }));
  const absl::Duration period =
      std::clamp(options.session_timeout / 8, absl::Milliseconds(20), absl::Milliseconds(500));
  sweeper = std::thread([this, period] {
    while (!stop_sweeper.WaitForNotificationWithTimeout(period)) Sweep();
  });
  return absl::OkStatus();
}

void Server::Parts::MakeServices(const std::string& instance_id, uint32_t instance_tag) {
  encoder.emplace(EncoderOptionsOf(options), *store, models, metrics, clock);
  sessions.emplace(SessionOptionsOf(options), clock,
                   [this](const SessionId& id, SessionEndReason reason) {
                     store->ReleaseSession(id.view());
                     encoder->CloseSession(id);
                     metrics.OnSessionEnded(reason);
                   });
  // What came up may be above its ladder by now.
  store->SetPrefetchListener([this](const RecordKey& key, const ScopeId& scope) {
    encoder->Consider(PageRef{key, scope});
  });
  store->SetPageForms(FormsOfPages());
  fetch_encodes.emplace(options.encode_threads, kFetchEncodesMax);
  admin_jobs.emplace(kAdminThreads, kAdminJobsMax);
  context.emplace(ServiceContext{options, clock, callers, *store, models, *sessions, *encoder,
                                 metrics, *fetch_encodes, *admin_jobs, instance_id, instance_tag,
                                 /*shm_socket=*/"", hbm.get(), /*peers=*/nullptr});
  cache_service.emplace(*context);
  admin_service.emplace(*context, [this] { listener.SetServing(false); });
}

PageForms Server::Parts::FormsOfPages() {
  PageForms forms;
  if (const std::optional<Precision> lowest = options.ladder.LowestPressure()) {
    forms.shed_floor = *lowest;
    forms.shed_gain = [this](const HostPage& page) { return encoder->ShedGain(page); };
    forms.shed = [this](const RecordKey& record, const ScopeId& scope) {
      return encoder->Shed(record, scope);
    };
  }
  forms.on_ssd = [this](const HostPage& page) -> std::optional<SsdForm> {
    const Identity& identity = page.header().identity;
    const Precision target = SsdPrecision(models.LadderOf(identity), page.precision());
    if (target >= page.precision()) return std::nullopt;
    const absl::Duration start = clock.Monotonic();
    absl::StatusOr<SsdForm> form = SsdFormAt(page, target, models.KLoLayersOf(identity));
    if (!form.ok()) return std::nullopt;  // NaN or infinity: written as it is
    metrics.OnEncoded(EncodePlace::kSsd, PrecisionOf(form->header.planes), 0,
                      clock.Monotonic() - start);
    return *std::move(form);
  };
  forms.ssd_precision = [this](const HostPage& page) {
    return SsdPrecision(models.LadderOf(page.header().identity), page.precision());
  };
  return forms;
}

// As with the device: what was asked for by name and cannot be had ends the start.
absl::Status Server::Parts::StartPeers() {
  if (hbm == nullptr || options.hbm.peer_links_max == 0) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<PeerLinks>> opened = PeerLinks::Create(*context);
  if (opened.ok()) {
    peers = *std::move(opened);
    context->peers = peers.get();
    LogInfo("nccl_on", {{"links_max", absl::StrCat(options.hbm.peer_links_max)}});
    return absl::OkStatus();
  }
  if (options.hbm.device == "auto") {
    LogInfo("nccl_off", {{"reason", std::string(opened.status().message())},
                         {"effect", "workers on other GPUs use gRPC"}});
    if (!options.shm.enabled) {  // then nobody finds device memory
      context->hbm = nullptr;
      hbm.reset();
    }
    return absl::OkStatus();
  }
  return absl::Status(
      opened.status().code(),
      absl::StrCat("hbm.peer_links_max: ", options.hbm.peer_links_max,
                   " links cannot be had: ", opened.status().message(),
                   "; set it to 0, or hbm.device to auto, which goes on without them"));
}

// Clients go on over gRPC where it does not start; device memory is then found by nobody but by
// links.
absl::Status Server::Parts::StartShm() {
  if (!options.shm.enabled) return absl::OkStatus();
  const mode_t mode = options.token_file.empty() ? 0600 : 0666;  // as grpc_listener.cc
  absl::StatusOr<std::unique_ptr<ShmServer>> started =
      ShmServer::Start(options.shm_socket(), mode, *context);
  if (started.ok()) {
    shm = *std::move(started);
    context->shm_socket = options.shm_socket();
    return absl::OkStatus();
  }
  if (hbm != nullptr && peers == nullptr && options.hbm.device != "auto") {
    return absl::Status(
        started.status().code(),
        absl::StrCat("hbm.device: ", options.hbm.device, " is of no use without shm.socket, ",
                     options.shm_socket(), ": ", started.status().message(),
                     "; set shm.socket to a path of at most 107 bytes, in a folder that may be "
                     "written, or hbm.device to auto or none"));
  }
  if (peers == nullptr) {
    context->hbm = nullptr;
    hbm.reset();
  }
  LogWarning("shm_off",
             {{"socket", options.shm_socket()},
              {"cause", std::string(started.status().message())},
              {"effect", "clients of this machine use gRPC"},
              {"remedy",
               "set shm.socket to a path of at most 107 bytes, in a folder that may be written"}});
  return absl::OkStatus();
}

absl::Status Server::Parts::ExposeMetrics() {
  gauges = std::make_shared<GaugeCollector>([this] { return State(); });
  if (options.metrics_listen == "none") return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(options.metrics_listen));
  if (absl::Status status = CheckCanListen(address); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("metrics_listen: ", status.message()));
  }
  try {  // civetweb throws when it cannot listen.
    exposer = std::make_unique<prometheus::Exposer>(address.ToString(), 2);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("metrics_listen: cannot listen on ", address.ToString(), ": ", error.what()));
  }
  exposer->RegisterCollectable(metrics.registry());
  exposer->RegisterCollectable(gauges);
  address.port = static_cast<uint16_t>(exposer->GetListeningPorts().at(0));
  metrics_address = address.ToString();
  return absl::OkStatus();
}

DaemonState Server::Parts::State() const {
  DaemonState state;
  state.store = store->Stats();
  state.policies = store->policies();
  state.scope_names = scope_names;
  state.sessions = static_cast<int64_t>(sessions->session_count());
  state.sequences = static_cast<int64_t>(encoder->sequence_count());
  state.encode_queue_pages = encoder->queued_count();
  state.draining = sessions->draining();
  if (hbm != nullptr) state.hbm = hbm->state();
  if (peers != nullptr) state.hbm.peer_links = peers->link_count();
  return state;
}

void Server::Parts::Sweep() {
  sessions->EndSilent();
  sessions->CheckFetchProgress();
  store->ExpireLeases();
  encoder->DropEarlySequences(options.session_timeout);
  encoder->Tick();
  const absl::Status saved = models.SaveIfChanged();
  if (!saved.ok() && !save_failed) {
    LogWarning("models_not_saved", {{"cause", std::string(saved.message())}});
  }
  save_failed = !saved.ok();
}

absl::Status Server::Parts::Shutdown(absl::Duration deadline) {
  if (shut_down) return absl::OkStatus();
  shut_down = true;
  const Clock& machine = SystemClock();  // The deadline is real time, whatever clock tests give.
  const absl::Duration end = machine.Monotonic() + deadline;
  const auto left = [&] { return std::max(end - machine.Monotonic(), absl::ZeroDuration()); };
  if (listener.server != nullptr) {
    LogInfo("stopping", {{"sessions", absl::StrCat(sessions->session_count())}});
    listener.SetServing(false);
    sessions->StartDraining();
    sessions->AwaitNone(std::min(deadline / 4, kSessionGraceMax));
    sessions->EndAll(SessionEndReason::kShutdown);
    listener.Shutdown(std::min(left() / 4, kSessionGraceMax));
  }
  if (shm != nullptr) shm->Stop();
  if (peers != nullptr) peers->Stop();
  stop_sweeper.Notify();
  if (sweeper.joinable()) sweeper.join();
  exposer.reset();
  if (fetch_encodes.has_value()) fetch_encodes->Stop();
  if (admin_jobs.has_value()) admin_jobs->Stop();
  absl::Status status;
  if (encoder.has_value()) {
    // Pages whose windows just closed shrink before they are written.
    encoder->AwaitIdle(left() / 2);
    encoder->Stop();
  }
  if (store != nullptr) status = store->Shutdown(left());
  status.Update(models.SaveIfChanged());
  if (!status.ok()) LogWarning("stopped", {{"cause", std::string(status.message())}});
  return status;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const Clock& clock) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  PAGODA_RETURN_IF_ERROR(CheckTls(options.tls));
  std::vector<TokenEntry> tokens;
  if (!options.token_file.empty()) {
    PAGODA_ASSIGN_OR_RETURN(tokens, ReadTokenFile(options.token_file));
  }
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<DataFolder> folder, DataFolder::Take(options.data_dir));
  const absl::StatusOr<std::string> secret =
      options.master_secret_file.empty() ? ReadOrMakeMasterSecret(options.master_secret_path())
                                         : ReadMasterSecret(options.master_secret_path());
  PAGODA_RETURN_IF_ERROR(secret.status());
  auto parts = std::make_unique<Parts>(options, clock, std::move(folder), tokens, *secret);
  // From here on the destructor undoes whatever was begun.
  std::unique_ptr<Server> server(new Server(std::move(parts)));
  PAGODA_RETURN_IF_ERROR(server->parts_->Open());
  const Parts& open = *server->parts_;
  LogInfo("serving", {{"version", kVersion},
                      {"listen", open.listener.address},
                      {"metrics", open.metrics_address},
                      {"data_dir", options.data_dir},
                      {"pages", absl::StrCat(open.store->Stats().page_count)},
                      {"ssd", open.store->has_ssd() ? "on" : "off"},
                      {"hbm", open.hbm != nullptr ? "on" : "off"},
                      {"tls", std::string(TlsMode(options.tls))},
                      {"tokens", absl::StrCat(tokens.size())}});
  return server;
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { (void)parts_->Shutdown(absl::Seconds(5)); }

const std::string& Server::address() const { return parts_->listener.address; }
int Server::port() const { return parts_->listener.port; }
const std::string& Server::metrics_address() const { return parts_->metrics_address; }

std::string Server::MetricsText() const {
  std::vector<prometheus::MetricFamily> families = parts_->metrics.registry()->Collect();
  for (prometheus::MetricFamily& family : parts_->gauges->Collect()) {
    families.push_back(std::move(family));
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

void Server::Sweep() { parts_->Sweep(); }

bool Server::AwaitEncoded(absl::Duration timeout) { return parts_->encoder->AwaitIdle(timeout); }

absl::Status Server::Shutdown(absl::Duration deadline) { return parts_->Shutdown(deadline); }

}  // namespace pagoda
