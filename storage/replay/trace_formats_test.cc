// Goal: good traces are read as what they say, and of a bad one nothing is: the error names file,
// line, cause and remedy. Method: small texts of each format, each mistake once.
#include "storage/replay/trace_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "storage/base/testing/status_matchers.h"
#include "storage/replay/trace_file.h"

namespace pagoda::replay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Runs = std::vector<BlockRun>;

absl::StatusOr<Trace> Parse(absl::string_view text) {
  return ParseTrace(text, "a.trace", AgenticOptions());
}

Runs RunsOf(const Trace& trace, size_t request) {
  const auto runs = trace.runs(trace.requests()[request]);
  return Runs(runs.begin(), runs.end());
}

void ExpectError(absl::string_view text, const std::string& place, const std::string& cause) {
  const absl::StatusOr<Trace> trace = Parse(text);
  ASSERT_FALSE(trace.ok()) << text;
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(trace.status().message()), AllOf(HasSubstr(place), HasSubstr(cause)));
}

// ---- Mooncake -----------------------------------------------------------------------------------

constexpr char kMooncake[] =
    R"({"timestamp": 0, "input_length": 1025, "output_length": 5, )"
    R"("hash_ids": [7, 18446744073709551615, 9]})"
    "\n"
    R"({"timestamp": 2500, "input_length": 1024, "hash_ids": [7, 18446744073709551615]})"
    "\r\n\n";

TEST(TraceFormatsTest, Mooncake) {
  const auto trace = Parse(kMooncake);
  PAGODA_ASSERT_OK(trace);
  EXPECT_EQ(trace->block_tokens(), 512);
  ASSERT_EQ(trace->requests().size(), 2u);
  EXPECT_EQ(trace->requests()[1].seconds, 2.5);
  EXPECT_EQ(trace->requests()[1].tokens, 1024);
  EXPECT_EQ(RunsOf(*trace, 0), Runs({{1, 3}}));
  EXPECT_EQ(RunsOf(*trace, 1), Runs({{1, 2}}));
  EXPECT_EQ(trace->unique_count(), 3);
  EXPECT_EQ(trace->block_count(), 5);
  EXPECT_EQ(trace->input_tokens(), 2049);
}

TEST(TraceFormatsTest, MooncakeMistakes) {
  const auto second = [](const std::string& line) {
    return R"({"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]})"
           "\n" +
           line + "\n";
  };
  ExpectError(second(R"({"timestamp": 1)"), "a.trace, line 2: ", "no JSON object");
  ExpectError(second("[]"), "line 2", "no JSON object");
  ExpectError(second(R"({"input_length": 5, "hash_ids": [1]})"), "line 2", "\"timestamp\"");
  ExpectError(second(R"({"timestamp": 1, "input_length": -5, "hash_ids": [1]})"), "line 2",
              "\"input_length\" is missing or is not a whole number");
  ExpectError(second(R"({"timestamp": 1, "input_length": 5, "hash_ids": 1})"), "line 2",
              "\"hash_ids\" is missing or is not an array");
  ExpectError(second(R"({"timestamp": 1, "input_length": 5, "hash_ids": [-1]})"), "line 2",
              "no number from 0");
  ExpectError(second(R"({"timestamp": -1, "input_length": 5, "hash_ids": [1]})"), "line 2",
              "0 or more");
  ExpectError(second(R"({"timestamp": 1, "input_length": 1500, "hash_ids": [1]})"), "line 2",
              "1 blocks for 1500 tokens; blocks of 512 tokens make 2, or 3");
  ExpectError(second(R"({"timestamp": 1, "input_length": 4294967296, "hash_ids": [1]})"), "line 2",
              "at most 2147483647");
  ExpectError(second(R"({"timestamp": 1, "input_length": 1024, "hash_ids": [3, 2]})"), "line 2",
              "hash each block together with the id before it");
  ExpectError(second(R"({"timestamp": 1, "input_length": 1024, "hash_ids": [1, 1]})"), "line 2",
              "hash each block");
}

// ---- Agents -------------------------------------------------------------------------------------

TEST(TraceFormatsTest, ConversationsAreMergedByTimeUnderIdsOfTheirOwn) {
  const auto trace = Parse(
      R"({"bs": 64, "reqs": [{"t": 0, "in": 200, "h": [[5, 3]]}, )"
      R"({"t": 130, "in": 330, "h": [[5, 2], [100, 3]]}]})"
      "\n"
      R"({"bs": 64, "reqs": [{"t": 1.5, "in": 64, "h": [[5, 1]]}, {"t": 10, "in": 63, "h": []}]})");
  PAGODA_ASSERT_OK(trace);
  EXPECT_EQ(trace->block_tokens(), 64);
  ASSERT_EQ(trace->requests().size(), 4u);
  EXPECT_EQ(trace->requests()[1].seconds, 121.5);
  EXPECT_EQ(trace->requests()[2].seconds, 130);
  EXPECT_EQ(RunsOf(*trace, 0), Runs({{1, 3}}));
  EXPECT_EQ(RunsOf(*trace, 1), Runs({{7, 1}}));  // the first conversation has 6 blocks
  EXPECT_EQ(RunsOf(*trace, 2), Runs({{1, 2}, {4, 3}}));
  EXPECT_EQ(RunsOf(*trace, 3), Runs());
  EXPECT_EQ(trace->unique_count(), 7);
}

TEST(TraceFormatsTest, OnlyTheFirstConversations) {
  AgenticOptions options;
  options.conversation_max = 1;
  const auto trace = ParseTrace(R"({"bs": 64, "reqs": [{"t": 0, "in": 64, "h": [[1, 1]]}]})"
                                "\nnot read",
                                "a", options);
  PAGODA_ASSERT_OK(trace);
  EXPECT_EQ(trace->requests().size(), 1u);
}

TEST(TraceFormatsTest, AgenticMistakes) {
  const auto line = [](const std::string& requests) {
    return R"({"bs": 64, "reqs": [)" + requests + "]}";
  };
  ExpectError(line("5"), "a.trace, line 1: ", "array of objects");
  ExpectError(line(R"({"t": 0, "in": 64})"), "line 1", "\"h\"");
  ExpectError(line(R"({"t": 0, "in": 64, "h": [[1]]})"), "line 1", "[first id, count]");
  ExpectError(line(R"({"t": 0, "in": 64, "h": [[1, 1099511627777]]})"), "line 1", "below 2^40");
  ExpectError(line(R"({"t": 0, "in": 64, "h": [[1, 2]]})"), "line 1",
              "ranges of 2 blocks for 64 tokens");
  ExpectError(line(R"({"t": -3, "in": 64, "h": [[1, 1]]})"), "line 1", "0 or more");
  // 2^40 blocks in one range.
  ExpectError(line(R"({"t": 0, "in": 70368744177664, "h": [[0, 1099511627776]]})"), "line 1",
              "more than 2147483647 different blocks");
  ExpectError(line(R"({"t": 0, "in": 67108928, "h": [[0, 1048577]]})"), "line 1",
              "at most 1048576 in one request");
  // 3 follows 2, and then 9.
  ExpectError(line(R"({"t": 0, "in": 192, "h": [[1, 3]]}, )"
                   R"({"t": 1, "in": 192, "h": [[1, 1], [9, 1], [3, 1]]})"),
              "line 1", "hash each block");
  ExpectError(R"({"bs": 0, "reqs": []})", "line 1", "\"bs\" is 0");
  ExpectError(R"({"bs": 64, "reqs": []})"
              "\n"
              R"({"bs": 32, "reqs": []})",
              "line 2", "the same in all lines");
}

// ---- CSV ----------------------------------------------------------------------------------------

TEST(TraceFormatsTest, Csv) {
  const auto trace = Parse(
      "# block_tokens=16\n# made by hand\n\ntime_s,tokens,ids\n0,33,10 20 30\r\n1.5,32,10 "
      "20\n2,15,");
  PAGODA_ASSERT_OK(trace);
  EXPECT_EQ(trace->block_tokens(), 16);
  ASSERT_EQ(trace->requests().size(), 3u);
  EXPECT_EQ(RunsOf(*trace, 0), Runs({{1, 3}}));
  EXPECT_EQ(RunsOf(*trace, 1), Runs({{1, 2}}));
  EXPECT_EQ(trace->requests()[2].block_count, 0u);
}

TEST(TraceFormatsTest, CsvMistakes) {
  const auto line = [](const std::string& text) {
    return "# block_tokens=16\ntime_s,tokens,ids\n" + text + "\n";
  };
  ExpectError("#block_tokens=16\n", "a.trace, line 1: ", "# block_tokens=64");
  ExpectError("# block_tokens=0\n", "line 1", "1 to 65536");
  ExpectError("# block_tokens=16\n0,16,1\n", "line 2", "time_s,tokens,ids");
  ExpectError(line("0,16"), "line 3", "2 fields");
  ExpectError(line("soon,16,1"), "line 3", "time_s \"soon\" is not a number of seconds");
  ExpectError(line("inf,16,1"), "line 3", "time inf s");
  ExpectError(line("0,16.5,1"), "line 3", "tokens \"16.5\"");
  ExpectError(line("0,-1,"), "line 3", "-1 tokens");
  ExpectError(line("0,16,0x1"), "line 3", "id \"0x1\"");
  ExpectError(line("0,16,18446744073709551616"), "line 3", "2^64 - 1");
  ExpectError(line("0,16,1\n0,48,1 2"), "line 4", "2 blocks for 48 tokens");
}

// ---- Files --------------------------------------------------------------------------------------

TEST(TraceFormatsTest, TextsWithoutATraceAreRefused) {
  ExpectError("", "a.trace, line 1", "known are Mooncake JSONL");
  ExpectError("{\"x\": 1}\n", "line 1", "\"reqs\"");
  EXPECT_EQ(Parse("# block_tokens=16\ntime_s,tokens,ids\n").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Parse("# block_tokens=16\n").status().code(), absl::StatusCode::kNotFound);
}

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  constexpr int kGzip = 16;
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + kGzip, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string bytes(deflateBound(&stream, text.size()), '\0');
  std::string source = text;
  stream.next_in = reinterpret_cast<Bytef*>(source.data());
  stream.avail_in = static_cast<uInt>(source.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

TEST(TraceFormatsTest, GzipIsUnpacked) {
  const std::string text(3'000'000, 'x');
  const std::string bytes = Gzip(text);
  const auto unpacked = Gunzip(bytes, 3'000'000);
  PAGODA_ASSERT_OK(unpacked);
  EXPECT_TRUE(*unpacked == text);
  // Members one after the other are one text.
  EXPECT_EQ(*Gunzip(Gzip("one ") + Gzip("two"), 100), "one two");
  EXPECT_EQ(Gunzip(bytes, 2'999'999).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TraceFormatsTest, DamagedGzipIsRefused) {
  const std::string bytes = Gzip("a text of some length");
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(Gunzip(bytes.substr(0, length), 100).status().code(),
              absl::StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_FALSE(Gunzip(bytes + "rest", 100).ok());
}

TEST(TraceFormatsTest, FilesAreNamedWithoutFolderAndEndings) {
  const std::string path = ::testing::TempDir() + "conversations.jsonl.gz";
  std::ofstream(path, std::ios::binary) << Gzip(kMooncake);
  const auto trace = ReadTrace(path, AgenticOptions());
  PAGODA_ASSERT_OK(trace);
  EXPECT_EQ(trace->name(), "conversations");
  EXPECT_EQ(trace->block_count(), 5);
  std::ofstream(path, std::ios::binary) << "\x1f\x8b nothing";
  EXPECT_THAT(std::string(ReadTrace(path, AgenticOptions()).status().message()),
              AllOf(HasSubstr("conversations.jsonl.gz: gzip data is damaged")));
  std::remove(path.c_str());
  const absl::Status absent = ReadTrace(path, AgenticOptions()).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr(path));
  EXPECT_FALSE(ReadTrace(::testing::TempDir(), AgenticOptions()).ok());
}

}  // namespace
}  // namespace pagoda::replay
