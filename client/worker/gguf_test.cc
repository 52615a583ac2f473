// Goal: no file, whatever its bytes, is read beyond its end or half understood; every error names
// what is wrong. Method: files from GgufWriter, cut at every length, with single fields made
// absurd.
#include "client/worker/gguf.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "client/worker/testing/gguf_writer.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using ::testing::ElementsAre;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Offsets of fields of the header.
constexpr size_t kVersionOffset = 4;
constexpr size_t kTensorCountOffset = 8;
constexpr size_t kKeyCountOffset = 16;

GgufWriter SmallWriter() {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  writer.SetUint32("count", 7);
  writer.SetFloat("epsilon", 0.5F);
  writer.SetBool("flag", true);
  writer.SetStrings("words", std::vector<std::string>{"a", "", "ccc"});
  writer.SetInts("kinds", {1, -3});
  writer.AddTensor("norm", {3}, TensorType::kF32, std::string(12, 'n'));
  writer.AddTensor("matrix", {64, 2}, TensorType::kQ4_1, std::string(80, 'm'));
  return writer;
}

std::string SmallFile() { return SmallWriter().Finish(); }

absl::Status ParseStatus(const std::string& bytes) {
  return GgufFile::FromBytes(AsBytes(bytes)).status();
}

template <typename T>
std::string With(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

std::string WithTensor(absl::Span<const uint64_t> dims, uint32_t type, size_t data_size) {
  GgufWriter writer;
  writer.AddTensor("t", dims, type, std::string(data_size, 'x'));
  return writer.Finish();
}

template <typename... T>
std::string Raw(T... values) {
  ByteWriter out;
  (out.Put(values), ...);
  return out.Take();
}

TEST(GgufTest, ReadsBackWhatWasWritten) {
  const std::string bytes = SmallFile();
  const auto file = GgufFile::FromBytes(AsBytes(bytes));
  PAGODA_ASSERT_OK(file);
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->bytes().size(), bytes.size());
  EXPECT_EQ(*file->GetString("general.architecture"), "llama");
  EXPECT_EQ(*file->GetUint("count"), 7u);
  EXPECT_EQ(*file->GetFloat("epsilon"), 0.5);
  EXPECT_TRUE(*file->GetBool("flag"));
  EXPECT_THAT(*file->GetStrings("words"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*file->GetInts("kinds"), ElementsAre(1, -3));
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* matrix = file->FindTensor("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_THAT(matrix->dims, ElementsAre(64, 2));
  EXPECT_EQ(matrix->element_count, 128u);
  EXPECT_EQ(AsText(matrix->data), std::string(80, 'm'));
  EXPECT_EQ(AsText(file->FindTensor("norm")->data), std::string(12, 'n'));
  EXPECT_EQ(file->FindTensor("none"), nullptr);
}

TEST(GgufTest, EveryTruncationIsDataLoss) {
  const std::string good = SmallFile();
  for (size_t size = 0; size < good.size(); ++size) {
    const absl::Status status = ParseStatus(good.substr(0, size));
    ASSERT_THAT(status, StatusIs(kDataLoss, "the download was cut")) << size;
    ASSERT_THAT(status, StatusIs(kDataLoss, "deploy/quickstart.sh")) << size;
  }
  // The tensor that is cut is named, with both numbers.
  const absl::Status status = ParseStatus(good.substr(0, good.size() - 1));
  EXPECT_THAT(status, StatusIs(kDataLoss, absl::StrCat("file has ", good.size() - 1)));
  EXPECT_THAT(status, StatusIs(kDataLoss, absl::StrCat("tensor matrix ends at ", good.size())));
}

TEST(GgufTest, NoFlippedBitMakesItReadBeyondItsEnd) {
  // Some flips give another valid file; the sanitizers watch the rest.
  const std::string good = SmallFile();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const auto file = GgufFile::FromBytes(AsBytes(bad));
    if (!file.ok()) continue;
    for (const GgufTensor& tensor : file->tensors()) {
      ASSERT_GE(tensor.data.data(), file->bytes().data());
      ASSERT_LE(tensor.data.data() + tensor.data.size(),
                file->bytes().data() + file->bytes().size());
    }
  }
}

TEST(GgufTest, RefusesWhatIsNoGguf) {
  EXPECT_THAT(ParseStatus("GGML and so on, long enough"), StatusIs(kInvalid, "not a GGUF"));
  EXPECT_THAT(ParseStatus("<html>"), StatusIs(kInvalid, "not a GGUF"));
  EXPECT_THAT(ParseStatus("x"), StatusIs(kInvalid, "not a GGUF"));
}

TEST(GgufTest, KnowsVersionsTwoAndThree) {
  PAGODA_EXPECT_OK(ParseStatus(With(SmallFile(), kVersionOffset, uint32_t{2})));
  EXPECT_THAT(ParseStatus(With(SmallFile(), kVersionOffset, uint32_t{1})),
              StatusIs(kUnimplemented, "version 1"));
  EXPECT_THAT(ParseStatus(With(SmallFile(), kVersionOffset, uint32_t{4})),
              StatusIs(kUnimplemented, "version 4"));
  EXPECT_THAT(ParseStatus(With(SmallFile(), kVersionOffset, uint32_t{3} << 24)),
              StatusIs(kUnimplemented, "big-endian"));
}

TEST(GgufTest, BoundsCounts) {
  const std::string good = SmallFile();
  for (const uint64_t count : {uint64_t{65537}, ~uint64_t{0}}) {
    EXPECT_THAT(ParseStatus(With(good, kTensorCountOffset, count)), StatusIs(kInvalid, "tensors"));
    EXPECT_THAT(ParseStatus(With(good, kKeyCountOffset, count)), StatusIs(kInvalid, "keys"));
  }
  // At the limit the count is believed, and the file is then too short for it.
  EXPECT_THAT(ParseStatus(With(good, kTensorCountOffset, uint64_t{65536})).code(),
              ::testing::AnyOf(kDataLoss, kInvalid));
}

TEST(GgufTest, BoundsStringsAndArrays) {
  GgufWriter writer;
  writer.SetRaw("s", 8, Raw(GgufFile::kStringBytesMax + 1));
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "metadata key s has 16777217"));
  writer = {};
  writer.SetRaw("s", 8, Raw(GgufFile::kStringBytesMax));
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kDataLoss));
  for (const uint32_t element : {uint32_t{4}, uint32_t{8}}) {
    writer = {};
    writer.SetRaw("a", 9, Raw(element, GgufFile::kArrayCountMax + 1));
    EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "67108865 elements"));
    writer = {};
    writer.SetRaw("a", 9, Raw(element, GgufFile::kArrayCountMax));
    EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kDataLoss));
  }
  writer = {};
  writer.SetRaw("a", 9, Raw(uint32_t{9}, uint64_t{1}));
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "array of arrays"));
  writer = {};
  writer.SetRaw("a", 9, Raw(uint32_t{13}, uint64_t{1}));
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "elements of type 13"));
  writer = {};
  writer.SetRaw("a", 13, "");
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "has type 13"));
  writer = {};
  writer.SetUint32(std::string(1024, 'k'), 1);
  PAGODA_EXPECT_OK(ParseStatus(writer.Finish()));
  writer = {};
  writer.SetUint32(std::string(1025, 'k'), 1);
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "name of metadata key 0"));
}

TEST(GgufTest, RefusesDuplicates) {
  GgufWriter writer;
  writer.SetUint32("k", 1);
  writer.SetUint32("k", 1);
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "metadata key k appears twice"));
  writer = {};
  writer.AddTensor("t", {1}, TensorType::kF32, "1234");
  writer.AddTensor("t", {1}, TensorType::kF32, "1234");
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "tensor t appears twice"));
}

TEST(GgufTest, ChecksTensorShapes) {
  PAGODA_EXPECT_OK(ParseStatus(WithTensor({1, 1, 1, 1}, 0, 4)));
  EXPECT_THAT(ParseStatus(WithTensor({}, 0, 4)), StatusIs(kInvalid, "0 dimensions"));
  EXPECT_THAT(ParseStatus(WithTensor({1, 1, 1, 1, 1}, 0, 4)), StatusIs(kInvalid, "5 dimensions"));
  EXPECT_THAT(ParseStatus(WithTensor({4, 0}, 0, 4)), StatusIs(kInvalid, "a dimension of 0"));
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_THAT(ParseStatus(WithTensor({big, big}, 0, 4)), StatusIs(kInvalid, "dimension"));
  // Fits into 63 bits as a count, not as bytes.
  EXPECT_THAT(ParseStatus(WithTensor({big, big / 4}, 0, 4)), StatusIs(kInvalid, "elements"));
  EXPECT_THAT(ParseStatus(WithTensor({big}, 0, 4)), StatusIs(kDataLoss, "tensor t ends at"));
  EXPECT_THAT(ParseStatus(WithTensor({33}, 3, 40)), StatusIs(kInvalid, "not whole Q4_1 blocks"));
  EXPECT_THAT(ParseStatus(WithTensor({128}, 14, 210)), StatusIs(kInvalid, "Q6_K"));
}

TEST(GgufTest, NamesTensorTypesItCannotRead) {
  const absl::Status q4_k = ParseStatus(WithTensor({256}, 12, 144));
  EXPECT_THAT(q4_k, StatusIs(kUnimplemented, "tensor t has type Q4_K (12)"));
  EXPECT_THAT(q4_k, StatusIs(kUnimplemented, "Q6_K"));
  EXPECT_THAT(ParseStatus(WithTensor({256}, 4, 144)), StatusIs(kUnimplemented, "unknown (4)"));
  EXPECT_THAT(ParseStatus(WithTensor({256}, 999, 144)), StatusIs(kUnimplemented, "unknown (999)"));
}

TEST(GgufTest, HonoursAlignmentAndOffsets) {
  GgufWriter writer = SmallWriter();
  writer.SetUint32("general.alignment", 64);
  writer.set_alignment(64);
  const std::string bytes = writer.Finish();
  const auto file = GgufFile::FromBytes(AsBytes(bytes));
  PAGODA_ASSERT_OK(file);
  EXPECT_EQ((file->FindTensor("matrix")->data.data() - file->bytes().data()) % 64, 0);
  EXPECT_EQ(AsText(file->FindTensor("matrix")->data), std::string(80, 'm'));
  for (const uint32_t alignment : {0u, 4u, 24u, 1u << 21}) {
    writer = {};
    writer.SetUint32("general.alignment", alignment);
    EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "general.alignment")) << alignment;
  }
  writer = {};
  writer.SetString("general.alignment", "32");
  EXPECT_THAT(ParseStatus(writer.Finish()), StatusIs(kInvalid, "general.alignment is string"));

  // The offset is the last field before the padding: 24 header, 8 + 1 name, 4 + 8 dims, 4 type.
  const std::string one = WithTensor({1}, 0, 4);
  constexpr size_t kOffset = 24 + 9 + 12 + 4;
  EXPECT_THAT(ParseStatus(With(one, kOffset, uint64_t{8})), StatusIs(kInvalid, "offset 8"));
  EXPECT_THAT(ParseStatus(With(one, kOffset, uint64_t{32})), StatusIs(kDataLoss));
  EXPECT_THAT(ParseStatus(With(one, kOffset, ~uint64_t{31})), StatusIs(kInvalid, "offset"));
}

TEST(GgufTest, GettersCheckTypes) {
  GgufWriter writer = SmallWriter();
  writer.SetRaw("u8", 0, Raw(uint8_t{200}));
  writer.SetRaw("i8", 1, Raw(int8_t{-1}));
  writer.SetRaw("u16", 2, Raw(uint16_t{60000}));
  writer.SetRaw("i16", 3, Raw(int16_t{300}));
  writer.SetRaw("i32", 5, Raw(int32_t{-5}));
  writer.SetRaw("u64", 10, Raw(~uint64_t{0}));
  writer.SetRaw("i64", 11, Raw(int64_t{1} << 40));
  writer.SetRaw("f64", 12, Raw(2.25));
  writer.SetRaw("u32s", 9, Raw(uint32_t{4}, uint64_t{1}, uint32_t{1} << 31));
  const std::string bytes = writer.Finish();
  const auto file = GgufFile::FromBytes(AsBytes(bytes));
  PAGODA_ASSERT_OK(file);
  EXPECT_EQ(*file->GetUint("u8"), 200u);
  EXPECT_EQ(*file->GetUint("u16"), 60000u);
  EXPECT_EQ(*file->GetUint("i16"), 300u);
  EXPECT_EQ(*file->GetUint("u64"), ~uint64_t{0});
  EXPECT_EQ(*file->GetUint("i64"), uint64_t{1} << 40);
  EXPECT_EQ(*file->GetFloat("f64"), 2.25);
  EXPECT_THAT(file->GetUint("i8"), StatusIs(kInvalid, "is -1"));
  EXPECT_THAT(file->GetUint("i32"), StatusIs(kInvalid, "is -5"));
  EXPECT_THAT(file->GetUint("epsilon"), StatusIs(kInvalid, "is float32"));
  EXPECT_THAT(file->GetUint("flag"), StatusIs(kInvalid, "is bool"));
  EXPECT_THAT(file->GetUint("words"), StatusIs(kInvalid, "is array"));
  EXPECT_THAT(file->GetFloat("count"), StatusIs(kInvalid, "is uint32"));
  EXPECT_THAT(file->GetBool("count"), StatusIs(kInvalid, "expected a bool"));
  EXPECT_THAT(file->GetString("count"), StatusIs(kInvalid, "expected a string"));
  EXPECT_THAT(file->GetStrings("kinds"), StatusIs(kInvalid, "array of strings"));
  EXPECT_THAT(file->GetInts("words"), StatusIs(kInvalid, "array of int32"));
  EXPECT_THAT(file->GetInts("u32s"), StatusIs(kInvalid, "element 0"));
  EXPECT_THAT(file->GetUint("none"), StatusIs(kNotFound, "metadata key none is absent"));
}

class GgufOpenTest : public ::testing::Test {
 protected:
  GgufOpenTest() : path_(::testing::TempDir() + "/gguf_test." + std::to_string(getpid())) {}
  ~GgufOpenTest() override { std::remove(path_.c_str()); }
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  const std::string path_;
};

TEST_F(GgufOpenTest, MapsAFileThatOutlivesItsName) {
  Write(SmallFile());
  auto file = GgufFile::Open(path_);
  PAGODA_ASSERT_OK(file);
  std::remove(path_.c_str());
  const GgufFile copy = *file;
  file = absl::UnknownError("the first owner is gone");
  EXPECT_EQ(AsText(copy.FindTensor("matrix")->data), std::string(80, 'm'));
}

TEST_F(GgufOpenTest, SaysWhatIsWrongWithAPath) {
  EXPECT_THAT(GgufFile::Open(path_), StatusIs(kNotFound, path_));
  EXPECT_THAT(GgufFile::Open(path_), StatusIs(kNotFound, "deploy/quickstart.sh"));
  Write("");
  EXPECT_THAT(GgufFile::Open(path_), StatusIs(kDataLoss, "is empty"));
  Write(SmallFile().substr(0, 100));
  EXPECT_THAT(GgufFile::Open(path_), StatusIs(kDataLoss, path_));
  EXPECT_THAT(GgufFile::Open(::testing::TempDir()), StatusIs(kInvalid, "not a regular file"));
  EXPECT_THAT(GgufFile::Open(path_ + "/below"), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace pagoda
