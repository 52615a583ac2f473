// Goal: whatever clients do over shared memory and gRPC, the daemon lives, honest clients get
// exactly their bytes in time, and when the hostile ones are gone nothing of them is left. Method:
// a real daemon in this process, attackers of every kind at once, seeded; an honest client checks
// every byte and how long it waits, before and meanwhile.
//
//   hostile_test --seconds N   attacks for so long (default 4)
#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "storage/base/clock.h"
#include "storage/device/host_runtime.h"
#include "tests/integration/shm_fixture.h"

namespace pagoda {

int hostile_seconds = 4;

namespace {

using Random = std::mt19937_64;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

std::string RandomBytes(Random& random, size_t size_max) {
  std::string bytes(random() % (size_max + 1), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

class HostileTest : public ShmTest {
 protected:
  void SetUp() override {
    daemon_.options().limits.sessions_max = 1200;
    daemon_.options().session_timeout = absl::Seconds(5);
    daemon_.options().lease = absl::Seconds(3);
    daemon_.options().host.capacity_bytes = 64 << 20;
    daemon_.options().hbm.device = "0";
    daemon_.options().hbm.capacity_bytes = 8 << 20;
    daemon_.options().hbm.chunk_bytes = 2 << 20;
    daemon_.options().hbm.open_device = [] { return std::make_unique<HostRuntime>(); };
    Start();
  }

  // What is left of all clients but the two honest ones.
  bool NothingIsLeft(absl::Duration timeout) {
    const absl::Duration end = SystemClock().Monotonic() + timeout;
    WireClient observer(daemon_.server().address());
    std::string last;
    while (SystemClock().Monotonic() < end) {
      const auto status = observer.Status();
      if (status.ok() && status->sessions() <= 2 && status->leases() == 0 &&
          status->sequences() == 0 && status->staged_pages() == 0 && status->staged_bytes() == 0) {
        return true;
      }
      if (status.ok()) last = status->ShortDebugString();
      absl::SleepFor(absl::Milliseconds(50));
    }
    ADD_FAILURE() << last;
    return false;
  }

  // ---- attackers: one round each
  using Attack = std::function<void(Random&)>;

  void Greeting(Random& random) {  // no hello, half a hello, another's session, silence
    const auto fd = ConnectPackets(path());
    if (!fd.ok()) return;
    shm::Hello hello;
    std::string bytes = BytesOf(hello);
    if (random() % 2 == 0) bytes[random() % bytes.size()] ^= static_cast<char>(random());
    if (random() % 2 == 0) bytes.resize(random() % bytes.size());
    (void)TrySendPacket(fd->get(), bytes);
    if (random() % 4 == 0) absl::SleepFor(absl::Milliseconds(random() % 20));
  }

  void Packets(Random& random, const std::string& session, const std::string& lease) {
    const UniqueFd fd = Socket(session);
    const UniqueFd foreign(::eventfd(0, EFD_CLOEXEC));
    for (int i = 0; i < 20; ++i) {
      shm::Request request;
      request.op = static_cast<shm::Op>(random() % 9);
      request.tag = static_cast<uint32_t>(random());
      if (random() % 2 == 0) {
        std::memcpy(request.lease_id.data(), lease.data(), lease.size());  // given back long ago
      }
      request.page_begin = static_cast<uint32_t>(random() % 3 == 0 ? random() : random() % 8);
      request.page_count = static_cast<uint32_t>(random() % 3 == 0 ? random() : random() % 8);
      request.what = random() % 2 == 0 ? random() % 64 : random();
      if (request.op == shm::Op::kDevice && random() % 2 == 0) {
        request.lease_id = HostRuntimeOptions().uuid.bytes;
      }
      std::string packet = BytesOf(request);
      if (request.op == shm::Op::kPush) {
        shm::Push head;
        head.segments = static_cast<uint32_t>(random() % 8);
        packet += BytesOf(head) + RandomBytes(random, 200);
      } else if (random() % 8 == 0) {
        packet += RandomBytes(random, 40);
      }
      const bool with_fd = random() % 3 == 0;
      if (!TrySendPacket(fd.get(), packet, with_fd ? foreign.get() : -1).ok()) return;
      if (random() % 3 == 0)
        (void)ReceivePacket(fd.get(), shm::kPacketBytesMax, absl::Milliseconds(5));
    }
  }

  void Staging(Random& random, const std::string& session, const std::vector<TestPage>& chain) {
    constexpr uint64_t kBytes = 1 << 20;
    const UniqueFd fd = Socket(session);
    shm::Request request;
    request.op = shm::Op::kStage;
    request.what = kBytes;
    (void)TrySendPacket(fd.get(), BytesOf(request));
    const auto answer = ReceivePacket(fd.get(), shm::kPacketBytesMax, absl::Seconds(1));
    if (!answer.ok() || !answer->fd.valid()) return;
    void* area = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, answer->fd.get(), 0);
    if (area == MAP_FAILED) return;
    (void)::ftruncate(answer->fd.get(), 0);
    const TestPage& page = chain[random() % chain.size()];
    std::memcpy(area, page.segments[0].data(), page.segments[0].size());
    v1::PushRequest fields;
    *fields.mutable_page() = page.start;
    request.op = shm::Op::kPush;
    for (int i = 0; i < 6; ++i) {  // the same page again and again, offsets beyond the area, ...
      std::vector<uint64_t> offsets(page.segments.size(), 0);
      if (random() % 2 == 0) offsets[random() % offsets.size()] = random();
      if (random() % 4 == 0) fields.mutable_page()->set_key(RandomBytes(random, 40));
      if (random() % 4 == 0) fields.mutable_page()->set_base_position(random());
      std::string packet = BytesOf(request);
      packet += BytesOf(shm::Push{static_cast<uint32_t>(offsets.size()), 0});
      packet.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * 8);
      packet += fields.SerializeAsString();
      if (random() % 4 == 0) packet[random() % packet.size()] ^= static_cast<char>(random());
      (void)TrySendPacket(fd.get(), packet);
      static_cast<char*>(area)[random() % kBytes] = static_cast<char>(random());
    }
    (void)ReceivePacket(fd.get(), shm::kPacketBytesMax, absl::Milliseconds(20));
    ::munmap(area, kBytes);
  }

  // Asks and asks, and never reads.
  void DeafSocket(const std::string& session, const std::string& lease) {
    const UniqueFd fd = Socket(session);
    shm::Request request = LocateRequest(lease, 0, 8);
    for (int i = 0; i < 3000; ++i) {
      if (absl::IsUnavailable(TrySendPacket(fd.get(), BytesOf(request)))) return;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }

  void Calls(Random& random, grpc::GenericStub& stub, const std::string& session,
             const std::string& lease) {
    static constexpr const char* kMethods[] = {"Hello", "Session", "Lookup", "Renew",  "Release",
                                               "Fetch", "Push",    "Report", "Nothing"};
    const std::string method =
        std::string("/pagoda.v1.Cache/") + kMethods[random() % std::size(kMethods)];
    std::string bytes = RandomBytes(random, 300);
    if (random() % 2 == 0) {
      v1::FetchRequest fetch;
      fetch.set_session_id(random() % 2 == 0 ? session : RandomBytes(random, 20));
      fetch.set_lease_id(random() % 2 == 0 ? lease : RandomBytes(random, 20));
      fetch.set_page_begin(static_cast<uint32_t>(random()));
      fetch.set_page_count(static_cast<uint32_t>(random()));
      fetch.set_layer_begin(static_cast<uint32_t>(random() % 100));
      bytes = fetch.SerializeAsString();
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    if (random() % 4 == 0) context.TryCancel();
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  }

  // A stream that asks for all pages and reads none, and pushes that end in the middle.
  void DeafStreams(Random& random, WireClient& wire, const std::string& lease,
                   const std::vector<TestPage>& chain) {
    v1::FetchRequest fetch;
    fetch.set_session_id(wire.session_id());
    fetch.set_lease_id(lease);
    fetch.set_page_count(static_cast<uint32_t>(chain.size()));
    auto deaf = wire.Context(0.3);
    const auto reader = wire.cache().Fetch(deaf.get());
    (void)reader->Write(fetch);
    auto context = wire.Context(0.5);
    const auto push = wire.cache().Push(context.get());
    v1::PushRequest request;
    request.set_session_id(wire.session_id());
    const TestPage& page = chain[random() % chain.size()];
    *request.mutable_page() = page.start;
    if (random() % 2 == 0) {
      for (size_t i = 0; i < page.segments.size(); ++i) {
        v1::Piece& piece = *request.add_pieces();
        piece.set_segment_index(static_cast<uint32_t>(i));
        piece.set_data(page.segments[i]);
        if (random() % 3 == 0) piece.set_offset(random());
      }
    }
    (void)push->Write(request);
    v1::PushRequest commit;
    commit.set_commit(true);
    (void)push->Write(commit);
    (void)push->Write(commit);  // twice
    if (random() % 2 == 0) context->TryCancel();
    (void)push->WritesDone();
    v1::PushResponse response;
    while (push->Read(&response)) {
    }
    (void)push->Finish();
    absl::SleepFor(absl::Milliseconds(10));
    deaf->TryCancel();
    v1::FetchResponse message;
    while (reader->Read(&message)) {
    }
    (void)reader->Finish();
  }

  // Seconds of honest fetches by both paths, every byte checked.
  std::vector<double> HonestFetches(client::Client& shm, client::Client& remote,
                                    const std::vector<TestPage>& chain, absl::Duration length) {
    std::vector<double> seconds;
    const absl::Duration end = SystemClock().Monotonic() + length;
    while (SystemClock().Monotonic() < end) {
      for (client::Client* client : {&shm, &remote}) {
        const absl::Duration begin = SystemClock().Monotonic();
        const auto fetched = Fetch(*client, chain);
        seconds.push_back(absl::ToDoubleSeconds(SystemClock().Monotonic() - begin));
        ExpectPushed(fetched, chain);
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }
};

double P99(const std::vector<double>& sorted) { return sorted[sorted.size() * 99 / 100]; }

TEST_F(HostileTest, EverythingAtOnce) {
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 8});
  Push(chain);
  const auto shm = MakeClient();
  const auto remote = MakeClient("none");
  wire_.reset();
  const absl::Duration length = absl::Seconds(hostile_seconds);
  const std::vector<double> alone = HonestFetches(*shm, *remote, chain, length / 4);
  const size_t descriptors_before = OpenDescriptors();

  std::atomic<bool> over{false};
  std::atomic<int64_t> rounds{0};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<WireClient>> idle;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      Random random(seed);
      WireClient wire(daemon_.server().address());
      const v1::ScopeInfo scope = wire.Hello(spec_)->scopes(0);
      const std::vector<TestPage> own =
          MakeChain(spec_, scope, {.page_count = 4, .seed = seed + 100});
      const auto channel =
          grpc::CreateChannel(daemon_.server().address(), grpc::InsecureChannelCredentials());
      grpc::GenericStub stub(channel);
      while (!over) {
        if (!wire.OpenSession().ok()) continue;
        v1::LookupRequest query = wire.LookupFor(spec_, scope, KeysOf(chain));
        const auto hit = wire.Lookup(query);
        const std::string lease = hit.ok() ? hit->lease_id() : std::string(16, 'l');
        for (int i = 0; i < 10 && !over; ++i, ++rounds) {
          switch (random() % 6) {
            case 0:
              Greeting(random);
              break;
            case 1:
              Packets(random, wire.session_id(), lease);
              break;
            case 2:
              Staging(random, wire.session_id(), own);
              break;
            case 3:
              DeafSocket(wire.session_id(), lease);
              break;
            case 4:
              Calls(random, stub, wire.session_id(), lease);
              break;
            default:
              if (hit.ok() && lease.size() == 16) DeafStreams(random, wire, lease, own);
          }
          // They share the processors with the daemon: what is tested is not who gets those.
          absl::SleepFor(absl::Milliseconds(5));
        }
        wire.BreakSession();
      }
    });
  }
  // A thousand sessions that do nothing.
  threads.emplace_back([&] {
    const auto channel =
        grpc::CreateChannel(daemon_.server().address(), grpc::InsecureChannelCredentials());
    const auto stub = v1::Cache::NewStub(channel);
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>>>
        streams;
    for (int i = 0; i < 1000; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      streams.push_back(stub->Session(contexts.back().get()));
    }
    while (!over) absl::SleepFor(absl::Milliseconds(10));
    for (size_t i = 0; i < streams.size(); ++i) {
      contexts[i]->TryCancel();
      (void)streams[i]->Finish();
    }
  });
  const std::vector<double> attacked = HonestFetches(*shm, *remote, chain, length);
  over = true;
  for (std::thread& thread : threads) thread.join();

  std::printf("hostile: rounds=%lld honest_fetches=%zu p99_alone_us=%.0f p99_attacked_us=%.0f\n",
              static_cast<long long>(rounds.load()), attacked.size(), P99(alone) * 1e6,
              P99(attacked) * 1e6);
  EXPECT_GT(rounds, 10);
  EXPECT_TRUE(NothingIsLeft(absl::Seconds(20)));
  ExpectPushed(Fetch(*shm, chain), chain);
  ExpectPushed(Fetch(*remote, chain), chain);
  // Connections that gRPC keeps for itself may be a few.
  size_t descriptors = 0;
  for (int i = 0; i < 100; ++i) {
    descriptors = OpenDescriptors();
    if (descriptors <= descriptors_before + 8) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_LE(descriptors, descriptors_before + 8);
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) != "--seconds") continue;
    if (!absl::SimpleAtoi(argv[i + 1], &pagoda::hostile_seconds) || pagoda::hostile_seconds < 1) {
      std::fprintf(stderr, "hostile_test: --seconds %s; a whole number from 1\n", argv[i + 1]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
