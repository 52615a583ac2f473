// What tests of shared memory have in common: a real daemon, a client over its wire, the real
// client, and connections of our own.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cache-server/testing/test_daemon.h"
#include "cache-server/testing/test_pages.h"
#include "client/client.h"
#include "proto/shm_protocol.h"
#include "storage/base/packet_socket.h"
#include "storage/base/slab_generation.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {

inline constexpr absl::Duration kSoon = absl::Seconds(5);

class ShmTest : public ::testing::Test {
 protected:
  void Start() {
    daemon_.Start();
    Connect();
  }
  void Connect() {
    wire_ = std::make_unique<WireClient>(daemon_.server().address());
    scope_ = wire_->Hello(spec_)->scopes(0);
    PAGODA_ASSERT_OK(wire_->OpenSession());
  }
  std::unique_ptr<client::Client> MakeClient(const std::string& shm_socket = "") {
    client::ClientOptions options;
    options.target = daemon_.server().address();
    options.model = spec_;
    options.shm_socket = shm_socket;
    options.reconnect_interval = absl::Milliseconds(50);
    auto made = client::Client::Create(options);
    PAGODA_CHECK(made.ok());
    PAGODA_CHECK((*made)->WaitConnected(kSoon).ok());
    return *std::move(made);
  }
  void Push(const std::vector<TestPage>& chain) {
    const auto pushed = wire_->Push(chain);
    PAGODA_ASSERT_OK(pushed);
    for (const v1::PushResponse& response : *pushed) EXPECT_EQ(response.code(), 0);
  }
  // Everything that was pushed is on SSD, and nowhere else.
  void LeaveOnSsdOnly() {
    v1::FlushResponse flushed;
    ASSERT_TRUE(wire_->admin().Flush(wire_->Context().get(), {}, &flushed).ok());
    v1::EvictRequest request;
    request.mutable_filter()->set_tier(v1::TIER_HOST);
    v1::EvictResponse evicted;
    ASSERT_TRUE(wire_->admin().Evict(wire_->Context().get(), request, &evicted).ok());
    EXPECT_GT(evicted.pages(), 0u);
  }
  static std::vector<PageKey> Keys(const std::vector<TestPage>& chain) {
    std::vector<PageKey> keys;
    for (const TestPage& page : chain) keys.push_back(page.key);
    return keys;
  }
  absl::StatusOr<client::LookupResult> Find(client::Client& client,
                                            const std::vector<TestPage>& chain) {
    client::LookupQuery query;
    const auto scope = client.FindScope({ScopeKind::kPrivate, ""});
    query.chains = {{scope->id, Keys(chain)}};
    query.precision_min = Precision::kQ2;
    query.fidelity_min = Precision::kQ2;
    return client.Lookup(query);
  }
  absl::StatusOr<client::FetchResult> Fetch(client::Client& client,
                                            const std::vector<TestPage>& chain,
                                            client::FetchOptions options = {}) {
    const absl::StatusOr<client::LookupResult> hit = Find(client, chain);
    if (!hit.ok()) return hit.status();
    absl::StatusOr<client::FetchResult> result = client.Fetch(*hit, Keys(chain), options);
    client.Release(hit->lease);
    return result;
  }
  // All pages came, with the bytes that were pushed.
  static void ExpectPushed(const absl::StatusOr<client::FetchResult>& result,
                           const std::vector<TestPage>& chain) {
    PAGODA_ASSERT_OK(result);
    PAGODA_EXPECT_OK(result->status);
    ASSERT_EQ(result->pages.size(), chain.size());
    for (size_t i = 0; i < chain.size(); ++i) {
      const client::FetchedPage& page = result->pages[i];
      EXPECT_EQ(page.header.record.key, chain[i].key);
      ASSERT_EQ(page.segments.size(), chain[i].segments.size());
      for (size_t s = 0; s < page.segments.size(); ++s) {
        EXPECT_EQ(AsText(page.segments[s].span().subspan(0, chain[i].segments[s].size())),
                  chain[i].segments[s]);
      }
    }
  }
  std::string path() const { return daemon_.folder() + "/socket.shm"; }

  // A connection of our own.
  UniqueFd Socket(const std::string& session_id) {
    absl::StatusOr<UniqueFd> fd = ConnectPackets(path());
    PAGODA_CHECK(fd.ok());
    shm::Hello hello;
    std::memcpy(hello.session_id.data(), session_id.data(), hello.session_id.size());
    Send(*fd, hello);
    return *std::move(fd);
  }
  template <typename T>
  static void Send(const UniqueFd& fd, const T& value) {
    (void)TrySendPacket(fd.get(),
                        absl::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
  }
  static bool HungUp(const UniqueFd& fd) {
    const absl::StatusOr<Packet> packet = ReceivePacket(fd.get(), shm::kPacketBytesMax, kSoon);
    return (packet.ok() && packet->bytes.empty()) || absl::IsUnavailable(packet.status());
  }
  static shm::Reply ReplyOn(const UniqueFd& fd, std::string* body = nullptr,
                            UniqueFd* memory = nullptr) {
    shm::Reply reply;
    absl::StatusOr<Packet> packet = ReceivePacket(fd.get(), shm::kPacketBytesMax, kSoon);
    PAGODA_EXPECT_OK(packet);
    if (!packet.ok() || packet->bytes.size() < sizeof(reply)) return reply;
    std::memcpy(&reply, packet->bytes.data(), sizeof(reply));
    if (body != nullptr) *body = packet->bytes.substr(sizeof(reply));
    if (memory != nullptr) *memory = std::move(packet->fd);
    return reply;
  }
  static absl::StatusCode CodeOf(const shm::Reply& reply) {
    return static_cast<absl::StatusCode>(reply.code);
  }
  shm::Request LocateRequest(const std::string& lease, uint32_t begin, uint32_t count) {
    shm::Request request;
    std::memcpy(request.lease_id.data(), lease.data(), request.lease_id.size());
    request.page_begin = begin;
    request.page_count = count;
    return request;
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> wire_;
  v1::ScopeInfo scope_;
};

}  // namespace pagoda
