#include "proto/piece_codec.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr size_t kPiecesMax = 1024;
constexpr uint32_t kWireVarint = 0;
constexpr uint32_t kWireFixed64 = 1;
constexpr uint32_t kWireBytes = 2;
constexpr uint32_t kWireFixed32 = 5;

void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// Walks over the bytes of several slices as if they were one.
class Cursor {
 public:
  Cursor(const std::vector<grpc::Slice>& slices, size_t size) : slices_(slices), left_(size) {}

  size_t left() const { return left_; }

  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_ == 0) return std::nullopt;
      SkipEmpty();
      const uint8_t byte = slices_[slice_].begin()[offset_];
      ++offset_;
      --left_;
      if (shift == 63 && byte > 1) return std::nullopt;
      value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }

  // Calls sink(span) for the next `size` bytes. REQUIRES: size <= left().
  template <typename Sink>
  void Take(size_t size, Sink&& sink) {
    PAGODA_CHECK(size <= left_);
    left_ -= size;
    while (size > 0) {
      SkipEmpty();
      const grpc::Slice& slice = slices_[slice_];
      const size_t run = std::min(size, slice.size() - offset_);
      sink(ByteSpan(reinterpret_cast<const std::byte*>(slice.begin()) + offset_, run));
      offset_ += run;
      size -= run;
    }
  }

 private:
  void SkipEmpty() {
    while (offset_ == slices_[slice_].size()) {
      ++slice_;
      offset_ = 0;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t slice_ = 0;
  size_t offset_ = 0;
  size_t left_;
};

// Bytes of the value after a tag of this wire type; nullopt for a malformed or unknown one.
std::optional<uint64_t> ValueSize(Cursor& in, uint32_t wire_type, std::string& copy) {
  switch (wire_type) {
    case kWireVarint: {
      const std::optional<uint64_t> value = in.Varint();
      if (!value) return std::nullopt;
      PutVarint(copy, *value);
      return 0;
    }
    case kWireFixed64:
      return 8;
    case kWireFixed32:
      return 4;
    case kWireBytes: {
      const std::optional<uint64_t> size = in.Varint();
      if (!size) return std::nullopt;
      PutVarint(copy, *size);
      return size;
    }
    default:
      return std::nullopt;
  }
}

// The body of one Piece of `size` bytes. False when malformed.
bool ParsePiece(Cursor& in, size_t size, PieceView& piece) {
  if (size > in.left()) return false;
  const size_t end = in.left() - size;
  std::string ignored;
  while (in.left() > end) {
    const std::optional<uint64_t> tag = in.Varint();
    if (!tag || in.left() < end) return false;
    const uint64_t field = *tag >> 3;
    const auto wire_type = static_cast<uint32_t>(*tag & 7);
    if (field >= 1 && field <= 3 && wire_type == kWireVarint) {
      const std::optional<uint64_t> value = in.Varint();
      if (!value) return false;
      const bool narrow = *value <= std::numeric_limits<uint32_t>::max();
      if (field < 3 && !narrow) return false;
      if (field == 1) piece.address.page_index = static_cast<uint32_t>(*value);
      if (field == 2) piece.address.segment_index = static_cast<uint32_t>(*value);
      if (field == 3) piece.address.offset = *value;
    } else if (field == 4 && wire_type == kWireBytes) {
      const std::optional<uint64_t> bytes = in.Varint();
      if (!bytes || in.left() < end || *bytes > in.left() - end) return false;
      piece.data.clear();
      piece.size = *bytes;
      in.Take(*bytes, [&](ByteSpan run) { piece.data.push_back(run); });
    } else {
      const std::optional<uint64_t> bytes = ValueSize(in, wire_type, ignored);
      if (field == 0 || !bytes || in.left() < end || *bytes > in.left() - end) return false;
      in.Take(*bytes, [](ByteSpan) {});
    }
    if (in.left() < end) return false;
  }
  return true;
}

}  // namespace

void PieceMessageWriter::AppendFields(const std::string& serialized) { small_ += serialized; }

void PieceMessageWriter::AppendPiece(const PieceAddress& address, grpc::Slice data) {
  std::string head;
  if (address.page_index != 0) {
    head.push_back(1 << 3 | kWireVarint);
    PutVarint(head, address.page_index);
  }
  if (address.segment_index != 0) {
    head.push_back(2 << 3 | kWireVarint);
    PutVarint(head, address.segment_index);
  }
  if (address.offset != 0) {
    head.push_back(3 << 3 | kWireVarint);
    PutVarint(head, address.offset);
  }
  head.push_back(4 << 3 | kWireBytes);
  PutVarint(head, data.size());
  small_.push_back(static_cast<char>(pieces_field_ << 3 | kWireBytes));
  PutVarint(small_, head.size() + data.size());
  small_ += head;
  FlushSmall();
  payload_bytes_ += data.size();
  slices_.push_back(std::move(data));
}

grpc::ByteBuffer PieceMessageWriter::Take() {
  FlushSmall();
  if (slices_.empty()) slices_.emplace_back("", 0);
  grpc::ByteBuffer buffer(slices_.data(), slices_.size());
  slices_.clear();
  payload_bytes_ = 0;
  return buffer;
}

void PieceMessageWriter::FlushSmall() {
  if (small_.empty()) return;
  slices_.emplace_back(small_.data(), small_.size());
  small_.clear();
}

void PieceView::CopyTo(MutableByteSpan target) const {
  PAGODA_CHECK(target.size() == size);
  size_t done = 0;
  for (const ByteSpan run : data) {
    std::memcpy(target.data() + done, run.data(), run.size());
    done += run.size();
  }
}

absl::StatusOr<PieceMessageReader> PieceMessageReader::Parse(const grpc::ByteBuffer& buffer,
                                                             int pieces_field) {
  const auto malformed = [] { return absl::InvalidArgumentError("message: malformed bytes"); };
  PieceMessageReader reader;
  if (!buffer.Dump(&reader.slices_).ok()) return malformed();
  Cursor in(reader.slices_, buffer.Length());
  while (in.left() > 0) {
    const std::optional<uint64_t> tag = in.Varint();
    if (!tag || *tag >> 3 == 0 || *tag > std::numeric_limits<uint32_t>::max()) return malformed();
    const auto wire_type = static_cast<uint32_t>(*tag & 7);
    if (static_cast<int>(*tag >> 3) == pieces_field && wire_type == kWireBytes) {
      const std::optional<uint64_t> size = in.Varint();
      if (!size || *size > in.left()) return malformed();
      if (reader.pieces_.size() == kPiecesMax) {
        return absl::InvalidArgumentError("message: more than 1024 pieces");
      }
      PieceView piece;
      if (!ParsePiece(in, *size, piece)) return malformed();
      reader.pieces_.push_back(std::move(piece));
    } else {
      PutVarint(reader.fields_, *tag);
      const std::optional<uint64_t> size = ValueSize(in, wire_type, reader.fields_);
      if (!size || *size > in.left()) return malformed();
      in.Take(*size, [&](ByteSpan run) {
        reader.fields_.append(reinterpret_cast<const char*>(run.data()), run.size());
      });
    }
  }
  return reader;
}

}  // namespace pagoda
