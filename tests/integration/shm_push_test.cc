// Goal: pages pushed through shared memory are stored like those that come over gRPC; whatever a
// client does to its staging area, it stores nothing but what it announced, and harms nobody.
// Method: a real daemon with the real client, then with connections of our own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "client/push_memory.h"
#include "storage/base/crc32c.h"
#include "tests/integration/shm_fixture.h"

namespace pagoda {
namespace {

constexpr int64_t kAreaBytes = 4 << 20;

class ShmPushTest : public ShmTest {
 protected:
  client::PushItem Item(const TestPage& page) const {
    client::PushItem item;
    item.scope = *ScopeId::FromBytes(page.start.scope_id());
    item.key = page.key;
    item.parent = *PageKey::FromBytes(page.start.parent());
    item.parent_is_root = page.start.parent_is_root();
    item.token_ids.assign(page.start.token_ids().begin(), page.start.token_ids().end());
    item.base_position = page.start.base_position();
    for (const std::string& segment : page.segments) {
      item.segments.push_back(AsBytes(segment));
      item.segment_crc32c.push_back(Crc32c(AsBytes(segment)));
    }
    return item;
  }
  // A staging area of our own.
  struct Staged {
    UniqueFd socket;
    UniqueFd memory;
    std::byte* data = nullptr;
  };
  Staged Stage(uint64_t bytes = kAreaBytes) {
    Staged staged;
    staged.socket = Socket(wire_->session_id());
    shm::Request request;
    request.op = shm::Op::kStage;
    request.what = bytes;
    Send(staged.socket, request);
    EXPECT_EQ(CodeOf(ReplyOn(staged.socket, nullptr, &staged.memory)), absl::StatusCode::kOk);
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, staged.memory.get(), 0);
    EXPECT_NE(data, MAP_FAILED);
    staged.data = static_cast<std::byte*>(data);
    return staged;
  }
  // Puts the page to the front of the area, and the packet that names it together.
  std::string NameIt(const Staged& staged, const TestPage& page) {
    std::vector<uint64_t> offsets;
    uint64_t at = 0;
    for (const std::string& segment : page.segments) {
      std::memcpy(staged.data + at, segment.data(), segment.size());
      offsets.push_back(at);
      at += segment.size();
    }
    return Packet(page, offsets);
  }
  static std::string Packet(const TestPage& page, const std::vector<uint64_t>& offsets) {
    v1::PushRequest fields;
    *fields.mutable_page() = page.start;
    return Packet(fields.SerializeAsString(), offsets);
  }
  static std::string Packet(const std::string& fields, const std::vector<uint64_t>& offsets) {
    shm::Request request;
    request.op = shm::Op::kPush;
    const shm::Push head{static_cast<uint32_t>(offsets.size()), 0};
    std::string packet(reinterpret_cast<const char*>(&request), sizeof(request));
    packet.append(reinterpret_cast<const char*>(&head), sizeof(head));
    packet.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * 8);
    return packet + fields;
  }
  static shm::Reply Say(const UniqueFd& socket, const std::string& packet) {
    PAGODA_EXPECT_OK(TrySendPacket(socket.get(), packet));
    return ReplyOn(socket);
  }
};

TEST_F(ShmPushTest, PagesAreStoredAsOverGrpc) {
  Start();
  const auto client = MakeClient();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 12});
  std::atomic<int> stored{0};
  const auto pusher = client->OpenPusher(
      {}, [&](const PageKey&, const absl::StatusOr<client::PushOutcome>& outcome) {
        if (outcome.ok() && *outcome == client::PushOutcome::kStored) ++stored;
      });
  PAGODA_ASSERT_OK(pusher);
  for (size_t i = 0; i < chain.size(); ++i) {
    client::PushItem item = Item(chain[i]);
    if (i % 2 == 0) client::MoveToReserved(**pusher, item);
    PAGODA_ASSERT_OK((*pusher)->Push(std::move(item)));
  }
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  EXPECT_EQ(stored, 12);
  EXPECT_EQ(client->stats().pushed_pages, 12);
  EXPECT_EQ(client->stats().shm_pushed_pages, 12);
  EXPECT_EQ(client->stats().shm_push_fallbacks, 0);
  ExpectPushed(Fetch(*client, chain), chain);
  // Again: they are there.
  PAGODA_ASSERT_OK((*pusher)->Push(Item(chain[3])));
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  EXPECT_EQ(stored, 12);
  EXPECT_EQ(client->stats().pushed_pages, 13);
}

TEST_F(ShmPushTest, RefusalsComeBackByPage) {
  Start();
  const auto client = MakeClient();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 3});
  std::vector<absl::Status> answers;
  const auto pusher = client->OpenPusher(
      {}, [&](const PageKey&, const absl::StatusOr<client::PushOutcome>& outcome) {
        answers.push_back(outcome.status());
      });
  PAGODA_ASSERT_OK(pusher);
  client::PushItem damaged = Item(chain[0]);
  damaged.segment_crc32c[0] ^= 1;
  PAGODA_ASSERT_OK((*pusher)->Push(std::move(damaged)));
  PAGODA_ASSERT_OK((*pusher)->Push(Item(chain[1])));  // its parent is not there
  PAGODA_ASSERT_OK((*pusher)->Push(Item(chain[0])));
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_THAT(answers[0], StatusIs(absl::StatusCode::kDataLoss, "checksum"));
  EXPECT_THAT(answers[1], StatusIs(absl::StatusCode::kFailedPrecondition, "parent"));
  PAGODA_EXPECT_OK(answers[2]);
  EXPECT_EQ(client->stats().push_failures, 2);
  EXPECT_EQ(client->stats().shm_push_fallbacks, 0);
}

// A page beyond the area, and everything once areas are refused, goes over gRPC.
TEST_F(ShmPushTest, WhatDoesNotFitGoesOverGrpc) {
  daemon_.options().shm.staging_bytes = 1 << 20;
  Start();
  const auto client = MakeClient();  // asks for 64 MiB
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  const auto pusher = client->OpenPusher({}, nullptr);
  PAGODA_ASSERT_OK(pusher);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK((*pusher)->Push(Item(page)));
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  EXPECT_EQ(client->stats().pushed_pages, static_cast<int64_t>(chain.size()));
  EXPECT_EQ(client->stats().shm_pushed_pages, 0);
  ExpectPushed(Fetch(*client, chain), chain);
}

TEST_F(ShmPushTest, ADaemonThatGoesTakesNoPageWithIt) {
  Start();
  const auto client = MakeClient();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  std::atomic<int> answers{0};
  const auto pusher = client->OpenPusher(
      {}, [&](const PageKey&, const absl::StatusOr<client::PushOutcome>&) { ++answers; });
  PAGODA_ASSERT_OK(pusher);
  PAGODA_ASSERT_OK((*pusher)->Push(Item(chain[0])));
  PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
  wire_.reset();
  PAGODA_ASSERT_OK(daemon_.Stop());
  int pushed = 1;
  for (const TestPage& page : chain) pushed += (*pusher)->Push(Item(page)).ok() ? 1 : 0;
  (void)(*pusher)->Flush(kSoon);
  EXPECT_EQ(answers, pushed);
  daemon_.Start();
  PAGODA_ASSERT_OK(client->WaitConnected(kSoon));
  Connect();
  const auto again = client->OpenPusher({}, nullptr);
  PAGODA_ASSERT_OK(again);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK((*again)->Push(Item(page)));
  PAGODA_ASSERT_OK((*again)->Flush(kSoon));
  EXPECT_EQ(client->stats().shm_pushed_pages, 1 + static_cast<int64_t>(chain.size()));
  ExpectPushed(Fetch(*client, chain), chain);
}

TEST_F(ShmPushTest, ManyPushersShareOneArea) {
  Start();
  const auto client = MakeClient();
  std::vector<std::vector<TestPage>> chains;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    chains.push_back(
        MakeChain(spec_, scope_, {.page_count = 10, .seed = seed, .content_seed = seed}));
  }
  std::vector<std::thread> threads;
  for (const std::vector<TestPage>& chain : chains) {
    threads.emplace_back([&] {
      const auto pusher = client->OpenPusher({}, nullptr);
      PAGODA_ASSERT_OK(pusher);
      for (const TestPage& page : chain) PAGODA_ASSERT_OK((*pusher)->Push(Item(page)));
      PAGODA_ASSERT_OK((*pusher)->Flush(kSoon));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(client->stats().shm_pushed_pages, 60);
  for (const std::vector<TestPage>& chain : chains) ExpectPushed(Fetch(*client, chain), chain);
}

TEST_F(ShmPushTest, TheAreaCannotHarmTheDaemon) {
  Start();
  const Staged staged = Stage();
  EXPECT_NE(::ftruncate(staged.memory.get(), 4096), 0);  // would end the daemon
  EXPECT_NE(::ftruncate(staged.memory.get(), 2 * kAreaBytes), 0);
  EXPECT_NE(::fcntl(staged.memory.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 1});
  const std::string packet = NameIt(staged, chain[0]);
  // Holes read as zeros.
  ASSERT_EQ(
      ::fallocate(staged.memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kAreaBytes),
      0);
  EXPECT_EQ(CodeOf(Say(staged.socket, packet)), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CodeOf(Say(staged.socket, NameIt(staged, chain[0]))), absl::StatusCode::kOk);
  ExpectPushed(Fetch(*MakeClient(), chain), chain);
}

TEST_F(ShmPushTest, WhatIsNamedIsBounded) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 1});
  const TestPage& page = chain[0];
  const auto area = static_cast<uint64_t>(kAreaBytes);
  const uint64_t length = page.segments[0].size();
  const Staged staged = Stage();
  const std::vector<uint64_t> good(page.segments.size(), 0);
  for (const uint64_t offset : {area, area - length + 1, ~uint64_t{0}, ~uint64_t{0} - length + 1}) {
    std::vector<uint64_t> offsets = good;
    offsets.back() = offset;
    offsets[0] = offset;
    EXPECT_EQ(CodeOf(Say(staged.socket, Packet(page, offsets))), absl::StatusCode::kInvalidArgument)
        << offset;
  }
  std::vector<uint64_t> fewer = good;
  fewer.pop_back();
  EXPECT_NE(CodeOf(Say(staged.socket, Packet(page, fewer))), absl::StatusCode::kOk);
  std::vector<uint64_t> more = good;
  more.push_back(0);
  EXPECT_NE(CodeOf(Say(staged.socket, Packet(page, more))), absl::StatusCode::kOk);
  // The connection is still good.
  EXPECT_EQ(CodeOf(Say(staged.socket, NameIt(staged, page))), absl::StatusCode::kOk);
  // A second area: refused in words.
  shm::Request again;
  again.op = shm::Op::kStage;
  again.what = area;
  EXPECT_EQ(CodeOf(Say(staged.socket, {reinterpret_cast<const char*>(&again), sizeof(again)})),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ShmPushTest, NonsenseEndsTheConnection) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 1});
  const auto hangs_up = [&](const std::string& packet) {
    const Staged staged = Stage(1 << 20);
    PAGODA_EXPECT_OK(TrySendPacket(staged.socket.get(), packet));
    for (int i = 0; i < 2; ++i) {  // an answer may come first
      const auto answer = ReceivePacket(staged.socket.get(), shm::kPacketBytesMax, kSoon);
      if (!answer.ok() || answer->bytes.empty()) return true;
    }
    return false;
  };
  EXPECT_TRUE(hangs_up(Packet("\xff\xff\xff", {})));
  std::string many = Packet(chain[0], {0});
  const uint32_t count = 100000;
  std::memcpy(many.data() + sizeof(shm::Request), &count, sizeof(count));
  EXPECT_TRUE(hangs_up(many));
  EXPECT_TRUE(hangs_up(many.substr(0, sizeof(shm::Request) + 3)));
  v1::PushRequest odd;
  odd.set_sequence_id("short");
  EXPECT_TRUE(hangs_up(Packet(odd.SerializeAsString(), {})));
  // Without an area there is nothing to name.
  const UniqueFd bare = Socket(wire_->session_id());
  PAGODA_EXPECT_OK(TrySendPacket(bare.get(), Packet(chain[0], {0})));
  EXPECT_TRUE(HungUp(bare));
  // Too many pages at once: an honest client waits.
  const Staged staged = Stage(1 << 20);
  const std::string packet = NameIt(staged, chain[0]);
  for (int i = 0; i < 2000; ++i) (void)TrySendPacket(staged.socket.get(), packet);
  PAGODA_EXPECT_OK(wire_->Hello(spec_));  // the daemon is well
}

// While it is read: what is stored has the checksum that was announced.
TEST_F(ShmPushTest, ChangesDuringAPushAreNoPage) {
  Start();
  const auto client = MakeClient();
  const Staged staged = Stage();
  std::atomic<bool> over{false};
  std::thread writer([&] {
    uint8_t value = 0;
    while (!over.load()) {
      staged.data[100] = static_cast<std::byte>(++value);
      std::this_thread::yield();
    }
  });
  int stored = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    const std::vector<TestPage> chain =
        MakeChain(spec_, scope_, {.page_count = 1, .seed = seed, .content_seed = seed});
    const shm::Reply reply = Say(staged.socket, NameIt(staged, chain[0]));
    if (reply.code != 0) {
      EXPECT_EQ(CodeOf(reply), absl::StatusCode::kDataLoss);
      continue;
    }
    ++stored;
    ExpectPushed(Fetch(*client, chain), chain);
  }
  over = true;
  writer.join();
  EXPECT_LT(stored, 200);
}

}  // namespace
}  // namespace pagoda
