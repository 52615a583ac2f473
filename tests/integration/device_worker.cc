// A worker for device_memory_device_test: finds the test's document, reads it in device memory and
// says so. "read" then gives it back and ends; "hold" keeps it until it is killed.
#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "cache-server/testing/wire_client.h"
#include "storage/device/testing/test_device.h"
#include "tests/integration/device_reader.h"

namespace pagoda {
namespace {

int Fail(const char* what, const absl::Status& status) {
  std::printf("%s: %s\n", what, status.ToString().c_str());
  return 1;
}

int Run(const std::string& address, bool hold) {
  const auto device = OpenTestDevice();
  if (!device.ok()) return Fail("device", device.status());
  const ModelSpec spec = TestModel();
  TestChainOptions shape;
  shape.page_tokens = 256;
  const auto chain = MakeChain(spec, WireClient(address).Hello(spec)->scopes(0), shape);
  client::ClientOptions options;
  options.target = address;
  options.model = spec;
  options.page_tokens = shape.page_tokens;
  options.device = device->get();
  const auto client = client::Client::Create(options);
  if (!client.ok()) return Fail("client", client.status());
  if (const auto status = (*client)->WaitConnected(absl::Seconds(20)); !status.ok()) {
    return Fail("connect", status);
  }
  std::vector<PageKey> keys;
  for (const TestPage& page : chain) keys.push_back(page.key);
  client::LookupQuery query;
  query.chains = {{(*client)->FindScope({ScopeKind::kPrivate, ""})->id, keys}};
  const auto hit = (*client)->Lookup(query);
  if (!hit.ok()) return Fail("lookup", hit.status());
  auto pages = (*client)->MapDevice(*hit, keys, {});
  if (!pages.ok()) return Fail("map", pages.status());
  DeviceReader reader(**device);
  if ((*pages)->there_count() != chain.size() || !reader.SeesAll(**pages, chain)) {
    return Fail("read", absl::DataLossError("other bytes than were pushed"));
  }
  (*client)->Release(hit->lease);
  std::printf("read\n");
  std::fflush(stdout);
  if (hold) absl::SleepFor(absl::Minutes(5));
  return (*pages)->ReleaseAfter(reader.stream()).ok() ? 0 : 1;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  return argc == 3 ? pagoda::Run(argv[1], std::string(argv[2]) == "hold") : 2;
}
