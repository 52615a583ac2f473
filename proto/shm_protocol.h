// What client and daemon of one machine say over the Unix socket beside gRPC: where the pages of a
// lease lie, descriptors of the memory they lie in, and pages that a client has put into memory of
// its own. Bytes of pages never travel here.
//
//   client  Hello                      once; nobody else knows the session's id
//           Request kLocate            where are these pages of this lease?
//           Request kLoad              the same, without waiting for those that load
//           Request kOpen              that memfd, please
//           Request kStage             a staging area of so many bytes, please; once a connection
//           Request kDevice            this process has that GPU, and would read pages in its
//                                      memory; once, on a connection for that alone
//           Request kPlace             where do these pages of this lease lie in device memory?
//                                      They are copied there
//           Request kPush | Push | u64 offsets of the page's segments in it | v1.PushRequest
//                                      a page: the message has `page`, and nothing but
//                                      `sequence_id` beside it. Its bytes stay as they are until
//                                      the answer
//   daemon  Reply | body               kLocate   for each page a Page and its Slabs, header first,
//                                                in one or more packets; the last one has `last`.
//                                                Fewer pages than asked: `code` says why, the body
//                                                ends with a sentence
//                                      kLoad     the same once all headers are there; then packets
//                                                whose `outcome` is how many of the first layers
//                                                all of these pages have; in the last one it is how
//                                                many of the pages came
//                                      kOpen, kStage   Memory, the descriptor as SCM_RIGHTS
//                                      kPush     `outcome`, or `code` and a sentence; pages of a
//                                                connection are answered in their order
//                            kDevice   `code`; before it comes the page of flag words
//                            kPlace    for each page a DevicePage, its encoded header and its
//                                      DeviceSlabs, or why it is not there; in the last packet then
//                                      a u64, the ticket that is finished when all of this answer
//                                      was read. Memory that is new to the client comes before.
//                                      Fewer pages than asked: ask again for the rest
//
// Flag words and memory come in packets of their own (storage/device/memory_import.h).
//
// One packet is one message (SOCK_SEQPACKET), fixed-size structs as the machine has them: both ends
// are on it. Whatever does not fit is an error and ends the connection.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace pagoda::shm {

constexpr std::array<char, 8> kMagic = {'P', 'G', 'D', 'A', 'S', 'H', 'M', '1'};
constexpr uint32_t kPacketBytesMax = 128 << 10;
constexpr uint32_t kPagesMax = 65536;    // of one kLocate
constexpr uint32_t kSegmentsMax = 4096;  // of a page
constexpr uint64_t kStagingBytesMax = uint64_t{256} << 20;
constexpr int kPushesMax = 64;  // of a connection, unanswered

// The bytes of one of these, behind those that are there.
template <typename T>
void AppendStruct(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

struct Hello {
  std::array<char, 8> magic = kMagic;
  std::array<uint8_t, 16> session_id{};
};

enum class Op : uint32_t {
  kLocate = 1,
  kOpen = 2,
  kStage = 3,
  kPush = 4,
  kLoad = 5,
  kDevice = 6,
  kPlace = 7
};

struct Request {
  Op op = Op::kLocate;
  uint32_t tag = 0;                    // comes back in every reply
  std::array<uint8_t, 16> lease_id{};  // kLocate, kLoad, kPlace; kDevice: the GPU's UUID
  uint32_t page_begin = 0;             // into the lease's pages
  uint32_t page_count = 0;
  uint64_t what = 0;  // kOpen: the memfd's id; kStage: bytes
};

struct Reply {
  Op op = Op::kLocate;
  uint32_t tag = 0;
  int32_t code = 0;      // google.rpc.Code
  uint32_t pages = 0;    // kLocate, kLoad, kPlace: in this packet
  uint32_t last = 0;     // 1 in the last packet
  uint32_t outcome = 0;  // kPush: as v1::PushOutcome; kLoad: layers, in the last packet pages
};

struct Page {
  uint32_t slabs = 0;  // the header's and one for each segment
  uint32_t tier = 0;   // where it was found, as v1::Tier
};

struct Slab {
  uint64_t memfd_id = 0;
  uint64_t offset = 0;
  uint64_t generation = 0;
};

// A page in device memory, or why it is not there: then its header is a sentence.
struct DevicePage {
  int32_t code = 0;           // google.rpc.Code
  uint32_t header_bytes = 0;  // that follow
  uint32_t slabs = 0;         // behind them, one for each segment
  uint32_t reserved = 0;
  uint64_t arrival = 0;  // as SharedDevicePage of storage/hbm_export.h
};

struct DeviceSlab {
  uint64_t memory_id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct Memory {
  uint64_t memfd_bytes = 0;
  uint64_t chunk_bytes = 0;  // kOpen: where the generations begin; storage/host_tier.h
};

struct Push {
  uint32_t segments = 0;
  uint32_t reserved = 0;
};

static_assert(sizeof(Hello) == 24 && sizeof(Request) == 40 && sizeof(Reply) == 24 &&
              sizeof(Page) == 8 && sizeof(Slab) == 24 && sizeof(Memory) == 16 &&
              sizeof(Push) == 8 && sizeof(DevicePage) == 24 && sizeof(DeviceSlab) == 24);
static_assert(std::is_trivially_copyable_v<Request> && std::is_trivially_copyable_v<Reply>);

}  // namespace pagoda::shm
