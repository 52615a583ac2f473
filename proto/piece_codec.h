// Push and Fetch messages without a copy of their payload: standard protobuf bytes, written and
// read by hand around the `Piece.data` fields. Any protobuf implementation reads and writes the
// same.
//
// Writer     payload is referenced by grpc::Slice, not copied; its owner must outlive the slice
//            (use a Slice with a destroyer that drops a reference).
// Reader     views into the ByteBuffer's slices; they live as long as the reader.
// Errors     INVALID_ARGUMENT  malformed bytes; nothing is reported of that message
// Limits     1024 pieces a message
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/bytes.h"

namespace pagoda {

constexpr int kFetchPiecesField = 2;  // FetchResponse.pieces
constexpr int kPushPiecesField = 4;   // PushRequest.pieces

struct PieceAddress {
  uint32_t page_index = 0;
  uint32_t segment_index = 0;
  uint64_t offset = 0;
};

class PieceMessageWriter {
 public:
  explicit PieceMessageWriter(int pieces_field) : pieces_field_(pieces_field) {}

  // Serialized bytes of a message of the same type, holding the other fields.
  void AppendFields(const std::string& serialized);
  void AppendPiece(const PieceAddress& address, grpc::Slice data);

  // Bytes of payload so far; a message is sent when this reaches its target.
  size_t payload_bytes() const { return payload_bytes_; }
  bool empty() const { return slices_.empty() && small_.empty(); }

  grpc::ByteBuffer Take();  // Leaves the writer empty.

 private:
  void FlushSmall();

  const int pieces_field_;
  std::string small_;  // bytes not yet in a slice
  std::vector<grpc::Slice> slices_;
  size_t payload_bytes_ = 0;
};

struct PieceView {
  PieceAddress address;
  size_t size = 0;
  absl::InlinedVector<ByteSpan, 2> data;  // gRPC may cut anywhere

  // REQUIRES: target.size() == size.
  void CopyTo(MutableByteSpan target) const;
};

class PieceMessageReader {
 public:
  static absl::StatusOr<PieceMessageReader> Parse(const grpc::ByteBuffer& buffer, int pieces_field);

  const std::vector<PieceView>& pieces() const { return pieces_; }
  // Serialized bytes of all other fields: parse them with the generated class.
  const std::string& fields() const { return fields_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<PieceView> pieces_;
  std::string fields_;
};

}  // namespace pagoda
