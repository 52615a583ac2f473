#include "client/shm_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "proto/shm_protocol.h"
#include "storage/base/clock.h"
#include "storage/base/packet_socket.h"
#include "storage/base/slab_generation.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

constexpr uint64_t kMemfdBytesMax = uint64_t{4} << 30;  // of a sane daemon
constexpr int64_t kPageBytesMax = int64_t{1} << 30;     // likewise
constexpr uint32_t kHeaderBytesMax = 512 << 10;
constexpr absl::Duration kTurnWait = absl::Milliseconds(20);
constexpr absl::Duration kMapIdle = absl::Seconds(30);  // the daemon may have given up that memory

// Memory of the daemon, read-only.
class Map {
 public:
  static absl::StatusOr<std::shared_ptr<const Map>> Make(const UniqueFd& fd,
                                                         const shm::Memory& memory) {
    const bool sane = memory.memfd_bytes <= kMemfdBytesMax && memory.chunk_bytes % 4096 == 0 &&
                      memory.chunk_bytes > 0 &&
                      memory.memfd_bytes >= static_cast<uint64_t>(GenerationOffset(
                                                static_cast<int64_t>(memory.chunk_bytes),
                                                static_cast<int64_t>(memory.chunk_bytes)));
    // A file that is shorter, or may become so, would end this process when it is read.
    struct stat info {};
    const bool whole = fd.valid() && ::fstat(fd.get(), &info) == 0 &&
                       static_cast<uint64_t>(info.st_size) >= memory.memfd_bytes &&
                       (::fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK) != 0;
    if (!whole || !sane) {
      return absl::DataLossError(absl::StrFormat("shm: memory of %d bytes, %d of them pages",
                                                 memory.memfd_bytes, memory.chunk_bytes));
    }
    void* data = ::mmap(nullptr, memory.memfd_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) {
      return absl::UnavailableError(
          absl::StrFormat("shm: mmap of %d bytes: %s", memory.memfd_bytes, std::strerror(errno)));
    }
    return std::shared_ptr<const Map>(new Map(static_cast<const std::byte*>(data), memory));
  }
  ~Map() { ::munmap(const_cast<std::byte*>(data_), memory_.memfd_bytes); }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;

  // Bytes from an offset to the end of the pages; empty where no slab can be.
  ByteSpan From(uint64_t offset) const {
    if (offset % 4096 != 0 || offset >= memory_.chunk_bytes) return {};
    return ByteSpan(data_ + offset, memory_.chunk_bytes - offset);
  }
  // REQUIRES: From(offset) is not empty.
  uint64_t Generation(uint64_t offset) const {
    const auto at = static_cast<size_t>(
        GenerationOffset(static_cast<int64_t>(memory_.chunk_bytes), static_cast<int64_t>(offset)));
    // Read-only memory: a plain load, atomic where it is aligned.
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(data_ + at), __ATOMIC_ACQUIRE);
  }

 private:
  Map(const std::byte* data, const shm::Memory& memory) : data_(data), memory_(memory) {}

  const std::byte* const data_;
  const shm::Memory memory_;
};
using MapPtr = std::shared_ptr<const Map>;

struct LocatedPage {
  shm::Page page;
  std::vector<shm::Slab> slabs;
};

// Takes structs off the front of a packet.
class PacketReader {
 public:
  explicit PacketReader(absl::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  bool Take(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return true;
  }
  absl::string_view rest() const { return bytes_; }

 private:
  absl::string_view bytes_;
};

// Whether no slab of the page was given back until now.
bool StillThere(const LocatedPage& page, const std::vector<MapPtr>& maps) {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (size_t i = 0; i < page.slabs.size(); ++i) {
    if (maps[i]->Generation(page.slabs[i].offset) != page.slabs[i].generation) return false;
  }
  return true;
}

// A page out of its slabs' maps. Everything is bounded before it is read, and nothing counts before
// the generations say that it was the page's.
absl::StatusOr<FetchedPage> CopyPage(const LocatedPage& located, const std::vector<MapPtr>& maps,
                                     const PageKey& key, const Identity& identity, Precision most) {
  const absl::Status gone = absl::AbortedError("shm: a page was given back while it was read");
  const ByteSpan at = maps[0]->From(located.slabs[0].offset);
  constexpr size_t kHeaderBytesAt = 12;  // kernels/README.md
  uint32_t header_bytes = 0;
  if (at.size() < 4096) return absl::DataLossError("shm: a header beyond its memory");
  std::memcpy(&header_bytes, at.data() + kHeaderBytesAt, sizeof(header_bytes));
  if (header_bytes > kHeaderBytesMax || header_bytes > at.size()) {
    return StillThere(located, maps) ? absl::DataLossError("shm: a header longer than its memory")
                                     : gone;
  }
  const std::string copy(reinterpret_cast<const char*>(at.data()), header_bytes);
  absl::StatusOr<PageHeader> header = DecodePageHeader(AsBytes(copy));
  if (!StillThere(located, maps)) return gone;
  if (!header.ok()) return header.status();
  if (header->record.key != key || header->identity != identity) {
    return absl::DataLossError("shm: page of another key or model");
  }
  if (header->segments.size() + 1 != located.slabs.size()) {
    return absl::DataLossError(absl::StrFormat("shm: %d slabs for %d segments",
                                               located.slabs.size(), header->segments.size()));
  }
  if (header->stored_bytes() > kPageBytesMax) {
    return absl::DataLossError(absl::StrFormat("shm: page of %d bytes", header->stored_bytes()));
  }
  if (most != Precision::kNone && PrecisionOf(header->planes) > most) {
    return absl::FailedPreconditionError("shm: the page is kept in a richer form than was asked");
  }
  FetchedPage page;
  page.tier = static_cast<PageTier>(located.page.tier);
  page.segments.reserve(header->segments.size());
  for (size_t i = 0; i < header->segments.size(); ++i) {
    const auto bytes = static_cast<size_t>(header->segments[i].stored_bytes());
    const ByteSpan source = maps[i + 1]->From(located.slabs[i + 1].offset);
    if (source.size() < bytes) return absl::DataLossError("shm: a segment beyond its memory");
    page.segments.push_back(
        kernels::AlignedBuffer::Uninitialized(header->segments[i].stored_bytes()));
    std::memcpy(page.segments.back().data(), source.data(), bytes);
  }
  if (!StillThere(located, maps)) return gone;
  page.header = *std::move(header);
  return page;
}

class ShmChannelImpl : public ShmChannel {
 public:
  explicit ShmChannelImpl(UniqueFd socket) : socket_(std::move(socket)) {}

  FetchResult Fetch(const LeaseId& lease, uint32_t page_begin, absl::Span<const PageKey> keys,
                    const Identity& identity, Precision most, absl::Duration timeout) override {
    FetchResult result;
    const absl::Duration end = SystemClock().Monotonic() + timeout;
    std::vector<LocatedPage> located;
    std::vector<std::vector<MapPtr>> maps;
    {
      const Turn turn(*this, std::min(timeout, kTurnWait));
      if (!turn.mine()) {
        result.status = absl::UnavailableError("shm: another request is under way");
        return result;
      }
      absl::MutexLock lock(&mutex_);
      result.status = Locate(lease, page_begin, keys.size(), end, located);
      for (const LocatedPage& page : located) {
        absl::Status opened = MapAll(page, end, maps.emplace_back());
        if (opened.ok()) continue;
        maps.pop_back();
        result.status = std::move(opened);
        break;
      }
    }
    for (size_t i = 0; i < maps.size(); ++i) {
      absl::StatusOr<FetchedPage> page = CopyPage(located[i], maps[i], keys[i], identity, most);
      if (!page.ok()) {
        result.status = page.status();
        break;
      }
      result.bytes += page->header.stored_bytes();
      result.pages.push_back(*std::move(page));
    }
    return result;
  }

  void DropIdleMaps() override {
    const Turn turn(*this, absl::ZeroDuration());
    if (!turn.mine()) return;
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = SystemClock().Monotonic();
    absl::erase_if(maps_, [&](const auto& entry) { return now - entry.second.used > kMapIdle; });
  }

  bool broken() const override { return broken_.load(std::memory_order_relaxed); }

 private:
  // The connection for one request. Another one may wait for a disk: nobody stands behind it for
  // longer than gRPC would take.
  class Turn {
   public:
    Turn(ShmChannelImpl& channel, absl::Duration timeout) : channel_(channel) {
      absl::MutexLock lock(&channel_.turn_mutex_);
      const auto free = [this] {
        channel_.turn_mutex_.AssertHeld();
        return !channel_.busy_;
      };
      mine_ = channel_.turn_mutex_.AwaitWithTimeout(absl::Condition(&free), timeout);
      if (mine_) channel_.busy_ = true;
    }
    ~Turn() {
      if (!mine_) return;
      absl::MutexLock lock(&channel_.turn_mutex_);
      channel_.busy_ = false;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool mine() const { return mine_; }

   private:
    ShmChannelImpl& channel_;
    bool mine_ = false;
  };

  struct Known {
    MapPtr map;
    absl::Duration used;
  };

  absl::Status Break(absl::Status status) {
    broken_.store(true, std::memory_order_relaxed);
    ::shutdown(socket_.get(), SHUT_RDWR);
    return status;
  }

  absl::Status Ask(shm::Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken()) return absl::UnavailableError("shm: the connection is broken");
    request.tag = ++tag_;
    const absl::string_view bytes(reinterpret_cast<const char*>(&request), sizeof(request));
    absl::Status status = TrySendPacket(socket_.get(), bytes);
    return status.ok() ? status : Break(std::move(status));
  }

  absl::StatusOr<Packet> Answer(absl::Duration end, shm::Op op, shm::Reply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      const absl::Duration left = end - SystemClock().Monotonic();
      if (left <= absl::ZeroDuration())
        return absl::DeadlineExceededError("shm: no answer in time");
      absl::StatusOr<Packet> packet = ReceivePacket(socket_.get(), shm::kPacketBytesMax, left);
      // What was asked in vain is answered later, and passed over then.
      if (absl::IsDeadlineExceeded(packet.status())) return packet.status();
      if (!packet.ok()) return Break(packet.status());
      if (packet->bytes.empty()) return Break(absl::UnavailableError("shm: the daemon hung up"));
      PacketReader reader(packet->bytes);
      if (!reader.Take(reply))
        return Break(absl::DataLossError("shm: an answer that is too short"));
      if (static_cast<int32_t>(reply.tag - tag_) < 0) continue;
      if (reply.op != op || reply.tag != tag_) {
        return Break(absl::DataLossError("shm: an answer to something else"));
      }
      packet->bytes.erase(0, sizeof(reply));
      return packet;
    }
  }

  absl::Status Locate(const LeaseId& lease, uint32_t page_begin, size_t page_count,
                      absl::Duration end, std::vector<LocatedPage>& located)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    shm::Request request;
    request.op = shm::Op::kLocate;
    request.lease_id = lease.bytes;
    request.page_begin = page_begin;
    request.page_count = static_cast<uint32_t>(page_count);
    PAGODA_RETURN_IF_ERROR(Ask(request));
    while (true) {
      shm::Reply reply;
      PAGODA_ASSIGN_OR_RETURN(const Packet packet, Answer(end, shm::Op::kLocate, reply));
      PacketReader reader(packet.bytes);
      for (uint32_t i = 0; i < reply.pages; ++i) {
        LocatedPage page;
        bool whole = reader.Take(page.page) && page.page.slabs > 0 &&
                     page.page.slabs <= shm::kPacketBytesMax / sizeof(shm::Slab) &&
                     located.size() < page_count;
        for (uint32_t s = 0; whole && s < page.page.slabs; ++s) {
          whole = reader.Take(page.slabs.emplace_back());
        }
        if (!whole) return Break(absl::DataLossError("shm: an answer that does not fit"));
        located.push_back(std::move(page));
      }
      if (reply.last == 0) continue;
      if (reply.code == 0) return absl::OkStatus();
      return absl::Status(static_cast<absl::StatusCode>(reply.code), reader.rest());
    }
  }

  // The map of every slab of a page.
  absl::Status MapAll(const LocatedPage& page, absl::Duration end, std::vector<MapPtr>& maps)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const shm::Slab& slab : page.slabs) {
      auto known = maps_.find(slab.memfd_id);
      if (known == maps_.end()) {
        PAGODA_ASSIGN_OR_RETURN(MapPtr map, Open(slab.memfd_id, end));
        known = maps_.emplace(slab.memfd_id, Known{std::move(map), {}}).first;
      }
      known->second.used = SystemClock().Monotonic();
      if (known->second.map->From(slab.offset).empty()) {
        return absl::DataLossError("shm: a slab beyond its memory");
      }
      maps.push_back(known->second.map);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<MapPtr> Open(uint64_t memfd_id, absl::Duration end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    shm::Request request;
    request.op = shm::Op::kOpen;
    request.memfd_id = memfd_id;
    PAGODA_RETURN_IF_ERROR(Ask(request));
    shm::Reply reply;
    PAGODA_ASSIGN_OR_RETURN(const Packet packet, Answer(end, shm::Op::kOpen, reply));
    PacketReader reader(packet.bytes);
    if (reply.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply.code), reader.rest());
    }
    shm::Memory memory;
    if (!reader.Take(memory)) return Break(absl::DataLossError("shm: an answer that is too short"));
    return Map::Make(packet.fd, memory);
  }

  const UniqueFd socket_;
  std::atomic<bool> broken_{false};  // relaxed: it only says where not to ask

  absl::Mutex turn_mutex_;
  bool busy_ ABSL_GUARDED_BY(turn_mutex_) = false;
  absl::Mutex mutex_;  // of the connection: of who has the turn, and so never waited for
  uint32_t tag_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Known> maps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<ShmChannel>> ShmChannel::Connect(const std::string& path,
                                                                const std::string& session_id) {
  PAGODA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectPackets(path));
  shm::Hello hello;
  if (session_id.size() != hello.session_id.size()) {
    return absl::InvalidArgumentError("shm: a session id of another length");
  }
  std::memcpy(hello.session_id.data(), session_id.data(), session_id.size());
  PAGODA_RETURN_IF_ERROR(TrySendPacket(
      socket.get(), absl::string_view(reinterpret_cast<const char*>(&hello), sizeof(hello))));
  return std::make_shared<ShmChannelImpl>(std::move(socket));
}

}  // namespace pagoda::client
