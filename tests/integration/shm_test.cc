// Goal: over shared memory a client of this machine gets the very bytes that gRPC would give, and
// nothing that its leases do not name; whatever else it does harms nobody. Method: a real daemon
// and the real client; then connections of our own that speak the protocol wrongly.
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "storage/base/slab_generation.h"
#include "tests/integration/shm_fixture.h"

namespace pagoda {
namespace {

// Changes a byte of every place in the folder's files where those bytes are; how many there were.
int DamageOnDisk(const std::string& folder, const std::string& bytes) {
  int places = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const size_t at = content.find(bytes);
    if (at == std::string::npos) continue;
    file.clear();
    file.seekp(static_cast<std::streamoff>(at + bytes.size() / 2));
    file.put(static_cast<char>(content[at + bytes.size() / 2] ^ 1));
    ++places;
  }
  return places;
}

TEST_F(ShmTest, BytesAreThoseOfGrpc) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 12});
  Push(chain);
  const auto shared = MakeClient();
  const auto remote = MakeClient("none");
  const auto by_memory = Fetch(*shared, chain);
  ExpectPushed(by_memory, chain);
  const auto by_grpc = Fetch(*remote, chain);
  ExpectPushed(by_grpc, chain);
  EXPECT_EQ(by_memory->bytes, by_grpc->bytes);
  for (size_t i = 0; i < chain.size(); ++i) {
    EXPECT_EQ(by_memory->pages[i].header, by_grpc->pages[i].header);
    EXPECT_EQ(by_memory->pages[i].tier, by_grpc->pages[i].tier);
    for (size_t s = 0; s < by_memory->pages[i].segments.size(); ++s) {  // padding too
      EXPECT_TRUE(by_memory->pages[i].segments[s].span() == by_grpc->pages[i].segments[s].span());
    }
  }
  EXPECT_EQ(shared->stats().shm_pages, 12);
  EXPECT_EQ(shared->stats().shm_fallbacks, 0);
  EXPECT_EQ(remote->stats().shm_pages, 0);
  // Parts of a lease, and a form that is not the stored one.
  const auto part = Fetch(*shared, chain, {.page_begin = 5, .page_count = 3});
  PAGODA_ASSERT_OK(part);
  ASSERT_EQ(part->pages.size(), 3u);
  EXPECT_EQ(part->pages[2].header.record.key, chain[7].key);
  EXPECT_EQ(shared->stats().shm_pages, 15);
  const auto q4 = Fetch(*shared, chain, {.precision_max = Precision::kQ4});
  PAGODA_ASSERT_OK(q4);
  EXPECT_EQ(PrecisionOf(q4->pages.at(0).header.planes), Precision::kQ4);
  EXPECT_EQ(shared->stats().shm_pages, 15);
}

TEST_F(ShmTest, PagesOnSsdComeUpIntoSharedMemory) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  LeaveOnSsdOnly();
  const auto client = MakeClient();
  ExpectPushed(Fetch(*client, chain), chain);
  EXPECT_EQ(client->stats().shm_pages, 4);
  ExpectPushed(Fetch(*client, chain), chain);
  EXPECT_EQ(client->stats().shm_pages, 8);
  EXPECT_EQ(client->stats().shm_fallbacks, 0);
}

// One page's bytes on the disk are wrong: those before it come, by layer or at once, and no more.
TEST_F(ShmTest, ADamagedPageOnSsdEndsTheLoadThere) {
  for (const bool by_layer : {true, false}) {
    SCOPED_TRACE(by_layer);
    daemon_.options().data_dir = daemon_.folder() + (by_layer ? "/a" : "/b");
    Start();
    const std::vector<TestPage> chain = MakeChain(spec_, scope_);
    Push(chain);
    LeaveOnSsdOnly();
    ASSERT_EQ(DamageOnDisk(daemon_.options().data_dir, chain[2].segments.back()), 1);
    const auto client = MakeClient();
    const auto hit = Find(*client, chain);
    PAGODA_ASSERT_OK(hit);
    ASSERT_EQ(hit->pages.size(), 4u);
    const auto fetch = client->StartFetch(*hit, Keys(chain), {});
    PAGODA_ASSERT_OK(fetch);
    if (by_layer) {
      const auto headers = (*fetch)->WaitHeaders(kSoon);
      PAGODA_ASSERT_OK(headers);
      // The lookup began to load: by now the damage may be known.
      EXPECT_TRUE(headers->size() == 2 || headers->size() == 4);
      const absl::Status layers = (*fetch)->WaitLayer(100, kSoon);
      EXPECT_EQ(layers.ok(), headers->size() == 2) << layers;
    }
    const client::FetchResult result = (*fetch)->Wait();
    EXPECT_EQ(result.pages.size(), 2u);
    EXPECT_FALSE(result.status.ok());
    client->Release(hit->lease);
    // Computed and pushed again it is whole.
    Push({chain[2]});
    ExpectPushed(Fetch(*client, chain), chain);
    wire_.reset();
    PAGODA_ASSERT_OK(daemon_.Stop());
  }
}

// Pages leave memory, others take their slabs, and the client's maps are still good for those.
TEST_F(ShmTest, WhatWasGivenBackIsNoPage) {
  daemon_.options().ssd.enabled = false;
  Start();
  const auto client = MakeClient();
  for (uint32_t seed = 1; seed <= 60; ++seed) {  // several times what fits
    const std::vector<TestPage> chain =
        MakeChain(spec_, scope_, {.page_count = 8, .seed = seed, .content_seed = seed});
    Push(chain);
    ExpectPushed(Fetch(*client, chain), chain);
  }
  EXPECT_EQ(client->stats().shm_pages, 480);
}

TEST_F(ShmTest, ARestartIsSurvived) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  const auto client = MakeClient();
  ExpectPushed(Fetch(*client, chain), chain);
  wire_.reset();
  PAGODA_ASSERT_OK(daemon_.Stop());
  EXPECT_FALSE(Fetch(*client, chain).ok());
  daemon_.Start();
  PAGODA_ASSERT_OK(client->WaitConnected(kSoon));
  ExpectPushed(Fetch(*client, chain), chain);  // from SSD
  ExpectPushed(Fetch(*client, chain), chain);
  EXPECT_EQ(client->stats().shm_pages, 12);
}

TEST_F(ShmTest, OffMeansGrpc) {
  daemon_.options().shm.enabled = false;
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  const auto client = MakeClient();
  ExpectPushed(Fetch(*client, chain), chain);
  EXPECT_EQ(client->stats().shm_pages, 0);
}

TEST_F(ShmTest, StrangersAndNonsenseAreCutOff) {
  Start();
  EXPECT_TRUE(HungUp(Socket(std::string(16, 'x'))));  // no such session
  const UniqueFd no_hello = *ConnectPackets(path());
  Send(no_hello, shm::Request{});
  EXPECT_TRUE(HungUp(no_hello));
  shm::Hello old;
  old.magic[7] = '0';
  const UniqueFd other_version = *ConnectPackets(path());
  Send(other_version, old);
  EXPECT_TRUE(HungUp(other_version));
  const UniqueFd odd = Socket(wire_->session_id());
  Send(odd, char{'x'});
  EXPECT_TRUE(HungUp(odd));
  shm::Request unknown;
  unknown.op = static_cast<shm::Op>(9);
  const UniqueFd op = Socket(wire_->session_id());
  Send(op, unknown);
  EXPECT_TRUE(HungUp(op));
  const UniqueFd ended = Socket(wire_->session_id());
  Send(ended, LocateRequest(std::string(16, 'l'), 0, 1));
  EXPECT_EQ(CodeOf(ReplyOn(ended)), absl::StatusCode::kNotFound);
  ASSERT_TRUE(wire_->CloseSession().ok());
  EXPECT_TRUE(HungUp(ended));
}

TEST_F(ShmTest, OnlyLeasedPagesAndTheirMemoryAreTold) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  const auto lookup = wire_->Lookup(wire_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  WireClient other(daemon_.server().address());
  PAGODA_ASSERT_OK(other.OpenSession());
  const UniqueFd mine = Socket(wire_->session_id());
  const UniqueFd stranger = Socket(other.session_id());

  Send(stranger, LocateRequest(lookup->lease_id(), 0, 4));
  EXPECT_EQ(CodeOf(ReplyOn(stranger)), absl::StatusCode::kNotFound);
  for (const auto& [begin, count] : {std::pair{0u, 0u}, {0u, 5u}, {4u, 1u}, {1u, 4000000000u}}) {
    Send(mine, LocateRequest(lookup->lease_id(), begin, count));
    EXPECT_EQ(CodeOf(ReplyOn(mine)), absl::StatusCode::kInvalidArgument);
  }
  Send(mine, LocateRequest(lookup->lease_id(), 0, 4));
  std::string body;
  const shm::Reply reply = ReplyOn(mine, &body);
  EXPECT_EQ(reply.code, 0);
  EXPECT_EQ(reply.pages, 4u);
  EXPECT_EQ(reply.last, 1u);
  shm::Slab slab;
  ASSERT_GE(body.size(), sizeof(shm::Page) + sizeof(slab));
  std::memcpy(&slab, body.data() + sizeof(shm::Page), sizeof(slab));

  shm::Request open;
  open.op = shm::Op::kOpen;
  open.what = slab.memfd_id;
  Send(stranger, open);  // it was told of none of it
  EXPECT_EQ(CodeOf(ReplyOn(stranger)), absl::StatusCode::kPermissionDenied);
  open.what = slab.memfd_id + 1000;
  Send(mine, open);
  EXPECT_EQ(CodeOf(ReplyOn(mine)), absl::StatusCode::kPermissionDenied);
  open.what = slab.memfd_id;
  Send(mine, open);
  UniqueFd memory;
  EXPECT_EQ(ReplyOn(mine, &body, &memory).code, 0);
  ASSERT_TRUE(memory.valid());
  shm::Memory sizes;
  ASSERT_EQ(body.size(), sizeof(sizes));
  std::memcpy(&sizes, body.data(), sizeof(sizes));
  EXPECT_EQ(::mmap(nullptr, sizes.memfd_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0),
            MAP_FAILED);
  // While the lease lives the slab stays; once it was given back its reader is told.
  void* map = ::mmap(nullptr, sizes.memfd_bytes, PROT_READ, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto generation = [&] {
    const int64_t at = GenerationOffset(static_cast<int64_t>(sizes.chunk_bytes),
                                        static_cast<int64_t>(slab.offset));
    return *reinterpret_cast<const volatile uint64_t*>(static_cast<const char*>(map) + at);
  };
  v1::EvictRequest evict;
  v1::EvictResponse evicted;
  ASSERT_TRUE(wire_->admin().Evict(wire_->Context().get(), evict, &evicted).ok());
  EXPECT_EQ(evicted.pages(), 0u);
  EXPECT_EQ(generation(), slab.generation);
  v1::ReleaseRequest release;
  release.set_session_id(wire_->session_id());
  release.add_lease_ids(lookup->lease_id());
  v1::ReleaseResponse released;
  ASSERT_TRUE(wire_->cache().Release(wire_->Context().get(), release, &released).ok());
  ASSERT_TRUE(wire_->admin().Evict(wire_->Context().get(), evict, &evicted).ok());
  EXPECT_EQ(evicted.pages(), 4u);
  EXPECT_EQ(generation(), slab.generation + 1);
  ::munmap(map, sizes.memfd_bytes);
}

TEST_F(ShmTest, APathThatDoesNotFitIsSaid) {
  daemon_.options().shm.socket = daemon_.folder() + "/" + std::string(120, 'x');
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  const auto client = MakeClient();
  EXPECT_EQ(client->server_info()->shm_socket, "");
  ExpectPushed(Fetch(*client, chain), chain);
}

// A page that was pushed again in full since it was found at q4.
TEST_F(ShmTest, NoRicherFormThanWasAsked) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  const auto client = MakeClient();
  absl::StatusOr<client::LookupResult> hit = Find(*client, chain);
  PAGODA_ASSERT_OK(hit);
  for (client::FoundPage& page : hit->pages)
    page.precision = Precision::kQ4;  // as it may have been
  const auto q4 = client->Fetch(*hit, Keys(chain), {.precision_max = Precision::kQ4});
  PAGODA_ASSERT_OK(q4);
  ASSERT_EQ(q4->pages.size(), 4u);
  for (const client::FetchedPage& page : q4->pages) {
    EXPECT_EQ(PrecisionOf(page.header.planes), Precision::kQ4);
  }
  EXPECT_EQ(client->stats().shm_pages, 0);
  EXPECT_EQ(client->stats().shm_fallbacks, 1);
}

// Push streams and shared memory do not take each other's places.
TEST_F(ShmTest, OnePushStreamIsEnough) {
  daemon_.options().limits.staged_pages_per_session_max = 1;
  Start();
  const UniqueFd mine = Socket(wire_->session_id());
  Send(mine, LocateRequest(std::string(16, 'l'), 0, 1));
  EXPECT_EQ(CodeOf(ReplyOn(mine)), absl::StatusCode::kNotFound);
  Push(MakeChain(spec_, scope_));
}

// Who asks for descriptors and does not read is cut off, and takes few of the daemon's.
TEST_F(ShmTest, DescriptorsThatNobodyReadsAreFew) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  Push(chain);
  const auto lookup = wire_->Lookup(wire_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const UniqueFd deaf = Socket(wire_->session_id());
  Send(deaf, LocateRequest(lookup->lease_id(), 0, 4));
  std::string body;
  EXPECT_EQ(ReplyOn(deaf, &body).code, 0);
  shm::Request open;
  open.op = shm::Op::kOpen;
  std::memcpy(&open.what, body.data() + sizeof(shm::Page), sizeof(open.what));
  absl::Status status;
  const absl::string_view bytes(reinterpret_cast<const char*>(&open), sizeof(open));
  for (int i = 0; i < 200000 && !absl::IsUnavailable(status); ++i) {
    status = TrySendPacket(deaf.get(), bytes);
    if (absl::IsResourceExhausted(status)) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  const auto client = MakeClient();
  ExpectPushed(Fetch(*client, chain), chain);
}

// Who asks and does not read is cut off; nobody else notices.
TEST_F(ShmTest, WhoDoesNotReadIsCutOff) {
  Start();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 12});
  Push(chain);
  const auto lookup = wire_->Lookup(wire_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const UniqueFd deaf = Socket(wire_->session_id());
  const shm::Request request = LocateRequest(lookup->lease_id(), 0, 12);
  absl::Status status;
  const absl::string_view bytes(reinterpret_cast<const char*>(&request), sizeof(request));
  for (int i = 0; i < 200000 && !absl::IsUnavailable(status); ++i) {
    status = TrySendPacket(deaf.get(), bytes);
    if (absl::IsResourceExhausted(status)) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  const auto client = MakeClient();
  ExpectPushed(Fetch(*client, chain), chain);
  EXPECT_EQ(client->stats().shm_pages, 12);
}

}  // namespace
}  // namespace pagoda
