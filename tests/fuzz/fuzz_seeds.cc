// Writes the inputs from which fuzzing starts: well-formed bytes of every format, so that mutation
// begins where the parsers say yes. A program instead of files, so that the seeds follow the
// formats.
//
//   fuzz_seeds DIR      makes DIR/TARGET/seeds/NAME
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kernels/page_layout.h"
#include "proto/shm_push_packet.h"
#include "storage/base/page_header.h"
#include "storage/device/memory_export.h"
#include "storage/directory_record.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

class Seeds {
 public:
  explicit Seeds(std::string root) : root_(std::move(root)) {}
  void Add(const std::string& target, const std::string& bytes) {
    const std::filesystem::path folder = std::filesystem::path(root_) / target / "seeds";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / std::to_string(count_++), std::ios::binary) << bytes;
  }
  int count() const { return count_; }

 private:
  const std::string root_;
  int count_ = 0;
};

std::string RecordEntry(const PageHeader& header) {
  const DirectoryRecord record = DirectoryRecordOf(header);
  return record.record.Encode() + EncodeDirectoryRecord(record);
}

// Pages of every precision, as roots and as chains.
void AddStorage(Seeds& seeds) {
  for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
    TestPage like;
    like.precision = precision;
    std::string chain;
    for (const TestPage& page : TestChain(4, 1, like)) {
      const PageHeader header = HeaderOf(page);
      seeds.Add("page_header_fuzz", EncodePageHeader(header));
      seeds.Add("directory_record_fuzz", RecordEntry(header));
      seeds.Add("shm_pages_fuzz", EncodePageHeader(header) + std::string("\0\1\2\xff\xff\xff", 6));
      chain = RecordEntry(header) + chain;  // children first: any order must do
    }
    seeds.Add("recovery_fuzz", chain);
    seeds.Add("recovery_fuzz", chain.substr(0, chain.size() / 2));  // the roots are missing
  }
}

// A page in a staging area.
void AddPush(Seeds& seeds) {
  v1::PushRequest request;
  request.set_sequence_id(std::string(16, 's'));
  v1::PushPage& page = *request.mutable_page();
  page.set_key(std::string(32, 'k'));
  page.set_page_tokens(64);
  for (uint32_t i = 0; i < 64; ++i) page.add_token_ids(i);
  page.add_segment_crc32c(1);
  seeds.Add("shm_push_packet_fuzz", shm::PushPacket(7, {0, 4096}, request.SerializeAsString()));
  seeds.Add("shm_push_packet_fuzz", shm::PushPacket(0, {}, ""));
}

// A q4 page with K lo of some layers: two planes of one kind. Pages of top codes.
void AddEncodedPage(Precision precision, Seeds& seeds) {
  PageHeader header = HeaderOf(TestRoot(1));
  const kernels::PageShape shape{6, 2, 64, 32};
  header.layer_count = static_cast<uint16_t>(shape.layer_count);
  header.record.head_begin = 0;
  header.record.head_count = static_cast<uint16_t>(shape.head_count);
  header.head_dim = static_cast<uint16_t>(shape.head_dim);
  header.page_tokens = static_cast<uint32_t>(shape.page_tokens);
  header.rotation = Rotation::kHadamardV1;
  header.recipe = CodeRecipe::kEmbedded8;
  header.planes.clear();
  header.segments.clear();
  constexpr int32_t kKLoLayers[] = {1, 3, 4};
  kernels::AppendPlanes(precision, shape, header, kKLoLayers);
  seeds.Add("page_header_fuzz", EncodePageHeader(header));
  seeds.Add("page_view_fuzz", EncodePageHeader(header));
  seeds.Add("directory_record_fuzz", RecordEntry(header));
  seeds.Add("recovery_fuzz", RecordEntry(header));
}

void AddDeviceMemory(Seeds& seeds) {
  for (const auto kind : {MemoryHandle::Kind::kDescriptor, MemoryHandle::Kind::kLegacyIpc,
                          MemoryHandle::Kind::kMemfd}) {
    ExportedMemory memory;
    memory.memory_id = 1;
    memory.handle.kind = kind;
    memory.handle.bytes = int64_t{64} << 20;
    seeds.Add("memory_export_fuzz", EncodeExport(memory));
  }
}

void AddConfig(Seeds& seeds) {
  for (const char* text :
       {"listen: 127.0.0.1:7070\nmetrics_listen: none\ndata_dir: /var/lib/pagoda\nhost:\n"
        "  capacity: 1GiB\n  chunk: auto\nssd:\n  enabled: true\n  capacity: 20GiB\n",
        "watermarks: {start: 0.85, stop: 0.75, hard: 0.95}\nladder: q8\nmodels:\n"
        "  my-model: {ladder: q4}\npage_tokens: 64\nencode_threads: 1\n",
        "lease_seconds: 30\nheartbeat_seconds: 2\nsession_timeout_seconds: 10\nlimits:\n"
        "  batch_pages_max: 4096\n  sessions_max: 256\n  piece_message_bytes_max: 8MiB\n",
        "tokens:\n  - {token: \"0123456789abcdef\", tenant: acme, groups: [legal], publish: true}\n"
        "  - {token: fedcba9876543210, tenant: ops, admin: true, push: false}\n",
        "model: a model\nidentity: "
        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"
        "layers: 30\nk_lo_layers: [3, 8, 9]\nbits: 4.588\n"}) {
    seeds.Add("config_file_fuzz", text);
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds DIR\n");
    return 2;
  }
  pagoda::Seeds seeds(argv[1]);
  pagoda::AddStorage(seeds);
  pagoda::AddPush(seeds);
  for (const auto precision : {pagoda::Precision::kQ4, pagoda::Precision::kQ3}) {
    pagoda::AddEncodedPage(precision, seeds);
  }
  pagoda::AddConfig(seeds);
  pagoda::AddDeviceMemory(seeds);
  std::printf("%d seeds\n", seeds.count());
  return 0;
}
