// What tests of pages between GPUs have in common: a daemon with links, and clients on another
// device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/device_fixture.h"
#include "tests/integration/gated_transport.h"
#include "tests/integration/peer_landing.h"

namespace pagoda {

using OpenTransport = std::function<absl::StatusOr<std::unique_ptr<PeerTransport>>(DeviceRuntime&)>;

inline OpenTransport Gated(OpenTransport open, GatedTransport::Gate gate) {
  return [open = std::move(open), gate = std::move(gate)](
             DeviceRuntime& device) -> absl::StatusOr<std::unique_ptr<PeerTransport>> {
    auto inner = open(device);
    if (!inner.ok()) return inner.status();
    return std::make_unique<GatedTransport>(*std::move(inner), gate);
  };
}

class PeerTest : public DeviceTest {
 protected:
  using Pages = std::vector<absl::StatusOr<client::PageOnDevice>>;

  // Set before Start(), after UseDevice().
  void UseLinks(OpenTransport open, int32_t links_max = 2) {
    daemon_.options().hbm.peer_links_max = links_max;
    daemon_.options().hbm.open_transport = std::move(open);
  }
  client::ClientOptions PeerClientOptions(const std::string& target, DeviceRuntime* device,
                                          OpenTransport open) {
    client::ClientOptions options;
    options.target = target;
    options.model = spec_;
    options.page_tokens = 256;
    options.device = device;
    options.peer.open_transport = std::move(open);
    options.peer.staging_bytes = 4 * kMiB;
    options.reconnect_interval = absl::Milliseconds(50);
    return options;
  }
  static std::unique_ptr<client::Client> Connected(client::ClientOptions options) {
    auto made = client::Client::Create(std::move(options));
    PAGODA_CHECK(made.ok());
    PAGODA_CHECK((*made)->WaitConnected(kLong).ok());
    return *std::move(made);
  }
  absl::StatusOr<Pages> FetchOnce(client::Client& client, const std::vector<TestPage>& chain,
                                  const client::DeviceTargets& targets) {
    const auto hit = Find(client, chain);
    if (!hit.ok()) return hit.status();
    auto pages = client.FetchDevice(*hit, Keys(chain), {}, targets);
    client.Release(hit->lease);
    return pages;
  }
  // Again while the link is being made.
  absl::StatusOr<Pages> FetchSoon(client::Client& client, const std::vector<TestPage>& chain,
                                  const client::DeviceTargets& targets) {
    const absl::Time end = absl::Now() + kLong;
    absl::StatusOr<Pages> pages = FetchOnce(client, chain, targets);
    while (absl::IsUnavailable(pages.status()) && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(10));
      pages = FetchOnce(client, chain, targets);
    }
    return pages;
  }
  static void ExpectAll(const absl::StatusOr<Pages>& pages, const std::vector<TestPage>& chain,
                        PeerLanding& landing) {
    PAGODA_ASSERT_OK(pages);
    ASSERT_EQ(pages->size(), chain.size());
    for (size_t i = 0; i < chain.size(); ++i) {
      EXPECT_TRUE(landing.Sees((*pages)[i], chain[i])) << "page " << i << (*pages)[i].status();
    }
  }
  bool LinksBecome(int64_t count) { return MetricBecomes("pagoda_peer_links", count); }
  int64_t NcclBytes() {
    return Metric("pagoda_transfer_bytes_total{direction=\"out\",path=\"nccl\"}");
  }
  int64_t NcclFailures() {
    return Metric("pagoda_transfer_failures_total{direction=\"out\",path=\"nccl\"}");
  }
};

}  // namespace pagoda
