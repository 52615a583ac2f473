// Goal: hand-written bytes and protobuf's are the same message, and no bytes can make the reader
// leave its buffer. Method: both directions, cut into slices at every place, every truncation,
// random damage under the sanitizers.
#include "proto/piece_codec.h"

#include <gtest/gtest.h>

#include <random>

#include "pagoda/v1/cache.pb.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

v1::FetchResponse Sample() {
  v1::FetchResponse message;
  v1::PageStart& start = *message.add_starts();
  start.set_page_index(3);
  start.set_header("header bytes");
  for (uint32_t i = 0; i < 3; ++i) {
    v1::Piece& piece = *message.add_pieces();
    piece.set_page_index(i * 200);
    piece.set_segment_index(i);
    piece.set_offset(uint64_t{i} << 33);
    piece.set_data(std::string(i * 70, static_cast<char>('a' + i)));
  }
  message.add_ends()->set_code(15);
  return message;
}

grpc::ByteBuffer Cut(const std::string& bytes, size_t at) {
  const grpc::Slice slices[3] = {grpc::Slice(bytes.data(), at), grpc::Slice("", 0),
                                 grpc::Slice(bytes.data() + at, bytes.size() - at)};
  return grpc::ByteBuffer(slices, 3);
}

std::string TextOf(const PieceView& piece) {
  std::string text(piece.size, '\0');
  piece.CopyTo(MutableByteSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
  return text;
}

void ExpectSample(const PieceMessageReader& reader) {
  const v1::FetchResponse sample = Sample();
  ASSERT_EQ(reader.pieces().size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reader.pieces()[i].address.page_index, sample.pieces(i).page_index());
    EXPECT_EQ(reader.pieces()[i].address.segment_index, sample.pieces(i).segment_index());
    EXPECT_EQ(reader.pieces()[i].address.offset, sample.pieces(i).offset());
    EXPECT_EQ(TextOf(reader.pieces()[i]), sample.pieces(i).data());
  }
  v1::FetchResponse fields;
  ASSERT_TRUE(fields.ParseFromString(reader.fields()));
  EXPECT_EQ(fields.starts(0).header(), "header bytes");
  EXPECT_EQ(fields.ends(0).code(), 15);
  EXPECT_EQ(fields.pieces_size(), 0);
}

TEST(PieceCodecTest, ReadsProtobufBytesCutAnywhere) {
  const std::string bytes = Sample().SerializeAsString();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto reader = PieceMessageReader::Parse(Cut(bytes, cut), kFetchPiecesField);
    PAGODA_ASSERT_OK(reader);
    ExpectSample(*reader);
  }
}

TEST(PieceCodecTest, ProtobufReadsWhatTheWriterWrote) {
  const v1::FetchResponse sample = Sample();
  PieceMessageWriter writer(kFetchPiecesField);
  v1::FetchResponse fields;
  *fields.add_starts() = sample.starts(0);
  *fields.add_ends() = sample.ends(0);
  writer.AppendFields(fields.SerializeAsString());
  for (const v1::Piece& piece : sample.pieces()) {
    writer.AppendPiece({piece.page_index(), piece.segment_index(), piece.offset()},
                       grpc::Slice(piece.data()));
  }
  EXPECT_EQ(writer.payload_bytes(), 210u);
  const grpc::ByteBuffer buffer = writer.Take();
  EXPECT_TRUE(writer.empty());
  grpc::Slice whole;
  ASSERT_TRUE(buffer.DumpToSingleSlice(&whole).ok());
  v1::FetchResponse read;
  ASSERT_TRUE(read.ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
  EXPECT_EQ(read.SerializeAsString(), sample.SerializeAsString());
}

TEST(PieceCodecTest, TruncatedAndDamagedBytesAreRefusedOrHarmless) {
  const std::string bytes = Sample().SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    (void)PieceMessageReader::Parse(Cut(bytes.substr(0, size), size / 2), kFetchPiecesField);
  }
  std::mt19937 rng(11);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = bytes;
    for (int i = 0; i < 3; ++i) bad[rng() % bad.size()] = static_cast<char>(rng());
    const auto reader = PieceMessageReader::Parse(Cut(bad, rng() % bad.size()), kFetchPiecesField);
    if (!reader.ok()) continue;
    for (const PieceView& piece : reader->pieces()) EXPECT_EQ(TextOf(piece).size(), piece.size);
  }
  EXPECT_THAT(PieceMessageReader::Parse(Cut("\x12\xff\xff\xff\x7f", 2), kFetchPiecesField),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(PieceMessageReader::Parse(Cut(std::string("\x00", 1), 0), kFetchPiecesField),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PieceCodecTest, TooManyPiecesAreRefused) {
  v1::FetchResponse message;
  for (int i = 0; i < 1025; ++i) message.add_pieces();
  const std::string bytes = message.SerializeAsString();
  EXPECT_THAT(PieceMessageReader::Parse(Cut(bytes, 0), kFetchPiecesField),
              StatusIs(absl::StatusCode::kInvalidArgument, "1024 pieces"));
}

}  // namespace
}  // namespace pagoda
