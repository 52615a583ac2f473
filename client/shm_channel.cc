#include "client/shm_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/packet_reader.h"
#include "client/shm_connect.h"
#include "proto/shm_protocol.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

constexpr size_t kSentenceMax = 4096;
constexpr size_t kAsideMax = 4096;  // one for each layer, and the end
constexpr absl::Duration kTurnWait = absl::Milliseconds(20);
constexpr absl::Duration kMapIdle = absl::Seconds(30);  // the daemon may have given up that memory

class ShmChannelImpl : public ShmChannel, public std::enable_shared_from_this<ShmChannelImpl> {
 public:
  explicit ShmChannelImpl(UniqueFd socket) : socket_(std::move(socket)) {}

  absl::StatusOr<std::unique_ptr<ShmPages>> Locate(const Wanted& wanted) override {
    const absl::Duration end = SystemClock().Monotonic() + wanted.timeout;
    const Turn turn(*this, std::min(wanted.timeout, kTurnWait));
    if (!turn.mine()) return absl::UnavailableError("shm: another request is under way");
    absl::MutexLock lock(&mutex_);
    PAGODA_RETURN_IF_ERROR(AskFor(shm::Op::kLocate, wanted));
    return Places(shm::Op::kLocate, wanted, end, nullptr);
  }

  absl::StatusOr<std::unique_ptr<ShmLoad>> Load(const Wanted& wanted) override;

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

  class LoadImpl;
  friend class LoadImpl;

  struct Known {
    ShmMapPtr map;
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
    return AnswerTo(tag_, end, op, reply);
  }

  absl::StatusOr<Packet> AnswerTo(uint32_t tag, absl::Duration end, shm::Op op, shm::Reply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (load_tag_ == tag && !aside_.empty()) {
      reply = aside_.front().reply;
      Packet packet;
      packet.bytes = std::move(aside_.front().body);
      aside_.pop_front();
      return packet;
    }
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
      const bool wanted = reply.tag == tag && reply.op == op;
      if (!wanted && load_tag_ == reply.tag) {
        if (reply.pages > 0 || reader.rest().size() > kSentenceMax || aside_.size() >= kAsideMax) {
          return Break(absl::DataLossError("shm: more about a load than there can be"));
        }
        aside_.push_back({reply, std::string(reader.rest())});
        continue;
      }
      if (!wanted && static_cast<int32_t>(reply.tag - tag_) < 0) continue;
      if (!wanted) return Break(absl::DataLossError("shm: an answer to something else"));
      packet->bytes.erase(0, sizeof(reply));
      return packet;
    }
  }

  absl::Status AskFor(shm::Op op, const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    shm::Request request;
    request.op = op;
    request.lease_id = wanted.lease.bytes;
    request.page_begin = wanted.page_begin;
    request.page_count = static_cast<uint32_t>(wanted.records.size());
    return Ask(request);
  }

  // Hears packets of places up to the first other one, which `end_reply` gets if it is not null,
  // and maps what they name.
  absl::StatusOr<std::unique_ptr<ShmPages>> Places(shm::Op op, const Wanted& wanted,
                                                   absl::Duration end, shm::Reply* end_reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto pages = std::make_unique<ShmPages>(
        std::vector<RecordKey>(wanted.records.begin(), wanted.records.end()), wanted.identity,
        wanted.lease_until);
    std::vector<std::string> answers;
    pages->set_status(HearPlaces(op, wanted.records.size(), end, answers, end_reply));
    if (broken()) return pages->status();
    const absl::Status mapped = MapAnswers(answers, wanted.records.size(), end, *pages);
    if (!mapped.ok()) pages->set_status(mapped);
    return pages;
  }

  // The bodies of the answers' pages; a status: why they are not all.
  absl::Status HearPlaces(shm::Op op, size_t page_count, absl::Duration end,
                          std::vector<std::string>& answers, shm::Reply* end_reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    size_t heard = 0;
    while (true) {
      shm::Reply reply;
      PAGODA_ASSIGN_OR_RETURN(Packet packet, Answer(end, op, reply));
      heard += reply.pages;
      PacketReader reader(packet.bytes);
      if (heard > page_count || !SkipPages(reply.pages, reader)) {
        return Break(absl::DataLossError("shm: an answer that does not fit"));
      }
      const std::string sentence(reader.rest());
      packet.bytes.resize(packet.bytes.size() - sentence.size());
      if (reply.pages > 0) answers.push_back(std::move(packet.bytes));
      const bool over = end_reply != nullptr && reply.pages == 0;
      if (over) *end_reply = reply;
      if (reply.last == 0 && !over) continue;
      if (reply.code == 0) return absl::OkStatus();
      return absl::Status(static_cast<absl::StatusCode>(reply.code), sentence);
    }
  }

  static bool SkipPages(uint32_t count, PacketReader& reader) {
    for (uint32_t i = 0; i < count; ++i) {
      shm::Page page;
      if (!reader.Take(page) || page.slabs == 0 || !reader.Skip(page.slabs * sizeof(shm::Slab))) {
        return false;
      }
    }
    return true;
  }

  // Opens what is new of the memory they lie in. On error `pages` ends before the page concerned.
  absl::Status MapAnswers(const std::vector<std::string>& answers, size_t page_count,
                          absl::Duration end, ShmPages& pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::flat_hash_map<uint64_t, const ShmMap*> held;  // by `pages`
    uint64_t last_id = 0;                               // most slabs lie where the last one does
    const ShmMap* last = nullptr;
    for (const std::string& answer : answers) {
      PacketReader reader(answer);
      while (!reader.rest().empty() && pages.size() < page_count) {
        shm::Page page;
        PAGODA_CHECK(reader.Take(page));
        for (uint32_t i = 0; i < page.slabs; ++i) {
          shm::Slab slab;
          PAGODA_CHECK(reader.Take(slab));
          if (last == nullptr || slab.memfd_id != last_id) {
            const auto [found, fresh] = held.try_emplace(slab.memfd_id, nullptr);
            if (fresh) {
              absl::StatusOr<ShmMapPtr> map = MapOf(slab.memfd_id, end);
              if (!map.ok()) {
                pages.DropSlabs();
                return map.status();
              }
              found->second = map->get();
              pages.Hold(*std::move(map));
            }
            last_id = slab.memfd_id;
            last = found->second;
          }
          if (!pages.AddSlab(slab, *last)) {
            pages.DropSlabs();
            return absl::DataLossError("shm: a slab beyond its memory");
          }
        }
        pages.AddPage(page);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ShmMapPtr> MapOf(uint64_t memfd_id, absl::Duration end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto known = maps_.find(memfd_id);
    if (known == maps_.end()) {
      PAGODA_ASSIGN_OR_RETURN(ShmMapPtr map, Open(memfd_id, end));
      known = maps_.emplace(memfd_id, Known{std::move(map), {}}).first;
    }
    known->second.used = SystemClock().Monotonic();
    return known->second.map;
  }

  absl::StatusOr<ShmMapPtr> Open(uint64_t memfd_id, absl::Duration end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    shm::Request request;
    request.op = shm::Op::kOpen;
    request.what = memfd_id;
    PAGODA_RETURN_IF_ERROR(Ask(request));
    shm::Reply reply;
    PAGODA_ASSIGN_OR_RETURN(const Packet packet, Answer(end, shm::Op::kOpen, reply));
    PacketReader reader(packet.bytes);
    if (reply.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply.code), reader.rest());
    }
    shm::Memory memory;
    if (!reader.Take(memory)) return Break(absl::DataLossError("shm: an answer that is too short"));
    return ShmMap::Make(packet.fd, memory);
  }

  const UniqueFd socket_;
  std::atomic<bool> broken_{false};  // relaxed: it only says where not to ask

  absl::Mutex turn_mutex_;
  bool busy_ ABSL_GUARDED_BY(turn_mutex_) = false;
  absl::Mutex mutex_;  // of the connection: of who has the turn, and so never waited for
  uint32_t tag_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of a load under way: what comes of it while something else is asked.
  struct Aside {
    shm::Reply reply;
    std::string body;
  };
  std::optional<uint32_t> load_tag_ ABSL_GUARDED_BY(mutex_);
  std::deque<Aside> aside_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Known> maps_ ABSL_GUARDED_BY(mutex_);
};

// Opening memory asks in between: those answers carry another tag, and the load's are set aside.
class ShmChannelImpl::LoadImpl : public ShmLoad {
 public:
  LoadImpl(std::shared_ptr<ShmChannelImpl> channel, absl::Duration end)
      : channel_(std::move(channel)), turn_(*channel_, kTurnWait), end_(end) {}
  ~LoadImpl() override {
    if (!turn_.mine()) return;
    absl::MutexLock lock(&channel_->mutex_);
    channel_->load_tag_.reset();  // what comes of it later is passed over
    channel_->aside_.clear();
  }

  absl::Status Begin(const Wanted& wanted) {
    if (!turn_.mine()) return absl::UnavailableError("shm: another request is under way");
    absl::MutexLock lock(&channel_->mutex_);
    PAGODA_RETURN_IF_ERROR(channel_->AskFor(shm::Op::kLoad, wanted));
    tag_ = channel_->tag_;
    channel_->load_tag_ = tag_;
    shm::Reply first;
    // Layers may be told before this side has opened the memory: what is told of is counted.
    PAGODA_ASSIGN_OR_RETURN(pages_, channel_->Places(shm::Op::kLoad, wanted, end_, &first));
    if (pages_->size() == 0 && !pages_->status().ok()) return pages_->status();
    Hear(first, pages_->status());
    return absl::OkStatus();
  }

  const std::shared_ptr<const ShmPages>& pages() const override { return pages_; }

  absl::Status WaitLayer(uint32_t layer, size_t page_count, absl::Duration timeout) override {
    const absl::Duration end = std::min(end_, SystemClock().Monotonic() + timeout);
    while (layers_ <= layer && !over_) PAGODA_RETURN_IF_ERROR(HearNext(end));
    if (layers_ > layer || came_ >= page_count) return absl::OkStatus();
    return status_.ok() ? absl::DataLossError("shm: pages came in part") : status_;
  }

  absl::StatusOr<size_t> WaitAll() override {
    while (!over_) PAGODA_RETURN_IF_ERROR(HearNext(end_));
    return came_;
  }

 private:
  absl::Status HearNext(absl::Duration end) {
    absl::MutexLock lock(&channel_->mutex_);
    shm::Reply reply;
    PAGODA_ASSIGN_OR_RETURN(const Packet packet,
                            channel_->AnswerTo(tag_, end, shm::Op::kLoad, reply));
    Hear(reply, reply.code == 0
                    ? absl::OkStatus()
                    : absl::Status(static_cast<absl::StatusCode>(reply.code), packet.bytes));
    return absl::OkStatus();
  }
  void Hear(const shm::Reply& reply, const absl::Status& status) {
    if (reply.last == 0) {
      layers_ = std::max(layers_, reply.outcome);
      return;
    }
    over_ = true;
    came_ = reply.outcome;
    status_ = status;
  }

  const std::shared_ptr<ShmChannelImpl> channel_;
  const Turn turn_;
  const absl::Duration end_;
  uint32_t tag_ = 0;
  std::shared_ptr<const ShmPages> pages_;
  uint32_t layers_ = 0;  // that all pages have
  bool over_ = false;
  size_t came_ = 0;
  absl::Status status_;
};

absl::StatusOr<std::unique_ptr<ShmLoad>> ShmChannelImpl::Load(const Wanted& wanted) {
  auto load =
      std::make_unique<LoadImpl>(shared_from_this(), SystemClock().Monotonic() + wanted.timeout);
  PAGODA_RETURN_IF_ERROR(load->Begin(wanted));
  return load;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShmChannel>> ShmChannel::Connect(const std::string& path,
                                                                const std::string& session_id) {
  PAGODA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectShm(path, session_id));
  return std::make_shared<ShmChannelImpl>(std::move(socket));
}

}  // namespace pagoda::client
