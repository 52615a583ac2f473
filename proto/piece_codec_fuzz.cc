// Fuzzes PieceMessageReader, which reads what any client or server sends.
// Method: the first byte says into how long slices the message is cut. Where both the reader and
// protobuf accept a message, they must agree on every piece; and what was read, written again by
// PieceMessageWriter, must read the same.
#include <algorithm>
#include <string>

#include "pagoda/v1/cache.pb.h"
#include "proto/piece_codec.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

grpc::ByteBuffer Cut(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size(); begin += slice_bytes) {
    slices.emplace_back(bytes.data() + begin, std::min(slice_bytes, bytes.size() - begin));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string DataOf(const PieceView& piece) {
  std::string data(piece.size, '\0');
  piece.CopyTo(MutableByteSpan(reinterpret_cast<std::byte*>(data.data()), data.size()));
  return data;
}

void CheckAgainstProtobuf(const std::string& bytes, const PieceMessageReader& reader) {
  v1::FetchResponse message;
  if (!message.ParseFromString(bytes)) return;
  PAGODA_CHECK(message.pieces_size() == static_cast<int>(reader.pieces().size()));
  for (int i = 0; i < message.pieces_size(); ++i) {
    const v1::Piece& expected = message.pieces(i);
    const PieceView& piece = reader.pieces()[i];
    PAGODA_CHECK(piece.address.page_index == expected.page_index());
    PAGODA_CHECK(piece.address.segment_index == expected.segment_index());
    PAGODA_CHECK(piece.address.offset == expected.offset());
    PAGODA_CHECK(DataOf(piece) == expected.data());
  }
  v1::FetchResponse others;
  PAGODA_CHECK(others.ParseFromString(reader.fields()));
  PAGODA_CHECK(others.starts_size() == message.starts_size());
  PAGODA_CHECK(others.ends_size() == message.ends_size());
}

void CheckRoundTrip(const PieceMessageReader& reader) {
  PieceMessageWriter writer(kFetchPiecesField);
  writer.AppendFields(reader.fields());
  for (const PieceView& piece : reader.pieces()) {
    writer.AppendPiece(piece.address, grpc::Slice(DataOf(piece)));
  }
  const absl::StatusOr<PieceMessageReader> again =
      PieceMessageReader::Parse(writer.Take(), kFetchPiecesField);
  PAGODA_CHECK(again.ok());
  PAGODA_CHECK(again->fields() == reader.fields());
  PAGODA_CHECK(again->pieces().size() == reader.pieces().size());
  for (size_t i = 0; i < reader.pieces().size(); ++i) {
    PAGODA_CHECK(DataOf(again->pieces()[i]) == DataOf(reader.pieces()[i]));
  }
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const grpc::ByteBuffer buffer = pagoda::Cut(bytes, size_t{data[0]} + 1);
  const auto push = pagoda::PieceMessageReader::Parse(buffer, pagoda::kPushPiecesField);
  if (push.ok()) PAGODA_CHECK(push->pieces().size() <= bytes.size());
  const auto fetch = pagoda::PieceMessageReader::Parse(buffer, pagoda::kFetchPiecesField);
  if (!fetch.ok()) return 0;
  pagoda::CheckAgainstProtobuf(bytes, *fetch);
  pagoda::CheckRoundTrip(*fetch);
  return 0;
}
