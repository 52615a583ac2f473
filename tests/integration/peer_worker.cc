// The other process of peer_fetch_device_test. "serve FOLDER": a daemon whose transfers begin and
// do not move; says its address. "fetch ADDRESS": a worker that asks for the test's document, says
// "coming" when the daemon has begun to send, and takes none of it. Both until they are killed.
#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "cache-server/server.h"
#include "cache-server/testing/wire_client.h"
#include "storage/device/testing/test_device.h"
#include "storage/device/testing/test_transport.h"
#include "tests/integration/gated_transport.h"
#include "tests/integration/peer_landing.h"

namespace pagoda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  return 1;
}

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenShut(DeviceRuntime& device) {
  auto inner = OpenTestTransport(device);
  if (!inner.ok()) return inner.status();
  return std::make_unique<GatedTransport>(*std::move(inner),
                                          std::make_shared<std::atomic<bool>>(false));
}

int Serve(const std::string& folder) {
  ServerOptions options;
  options.data_dir = folder + "/data";
  options.listen = "unix:" + folder + "/peer-socket";
  options.metrics_listen = "none";
  options.host.capacity_bytes = 64 * kMiB;
  options.ssd.enabled = false;
  options.ladder.standard = Precision::kRaw16;
  options.session_timeout = absl::Minutes(5);
  options.hbm.device = "0";
  options.hbm.capacity_bytes = 8 * kMiB;
  options.hbm.chunk_bytes = 2 * kMiB;
  options.hbm.peer_links_max = 1;
  options.hbm.open_device = [] { return OpenTestDevice(0); };
  options.hbm.open_transport = OpenShut;
  const auto server = Server::Start(options);
  if (!server.ok()) return Say(server.status().ToString());
  Say((*server)->address());
  absl::SleepFor(absl::Minutes(5));
  return 0;
}

int Fetch(const std::string& address) {
  const auto device = OpenTestDevice(1);
  if (!device.ok()) return Say(device.status().ToString());
  const ModelSpec spec = TestModel();
  TestChainOptions shape;
  shape.page_tokens = 256;
  const auto chain = MakeChain(spec, WireClient(address).Hello(spec)->scopes(0), shape);
  client::ClientOptions options;
  options.target = address;
  options.model = spec;
  options.page_tokens = shape.page_tokens;
  options.device = device->get();
  options.peer.open_transport = OpenShut;
  options.peer.staging_bytes = 4 * kMiB;
  const auto client = client::Client::Create(options);
  if (!client.ok()) return Say(client.status().ToString());
  if (const auto status = (*client)->WaitConnected(absl::Seconds(60)); !status.ok()) {
    return Say(status.ToString());
  }
  std::vector<PageKey> keys;
  for (const TestPage& page : chain) keys.push_back(page.key);
  client::LookupQuery query;
  query.chains = {{(*client)->FindScope({ScopeKind::kPrivate, ""})->id, keys}};
  PeerLanding landing(**device);
  const auto on_page = [&keys](uint32_t index) {
    if (index + 1 == keys.size()) Say("coming");
  };
  absl::Status status = absl::UnavailableError("");
  while (absl::IsUnavailable(status)) {
    const auto hit = (*client)->Lookup(query);
    if (!hit.ok()) return Say(hit.status().ToString());
    status = (*client)->FetchDevice(*hit, keys, {}, landing.Targets(on_page)).status();
  }
  return Say(status.ToString());
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return std::string(argv[1]) == "serve" ? pagoda::Serve(argv[2]) : pagoda::Fetch(argv[2]);
}
