#include "storage/base/crc32c.h"

#include <array>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace pagoda {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t n = 0; n < 256; ++n) {
    uint32_t crc = n;
    for (int k = 0; k < 8; ++k) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    tables[0][n] = crc;
  }
  for (uint32_t n = 0; n < 256; ++n) {
    for (size_t k = 1; k < 8; ++k) {
      tables[k][n] = (tables[k - 1][n] >> 8) ^ tables[0][tables[k - 1][n] & 0xff];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

// Polynomials over GF(2) modulo the CRC's: x^n as a 32-bit word, reflected.
uint32_t MultiplyModP(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t m = uint32_t{1} << 31; m != 0; m >>= 1) {
    if ((a & m) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

uint32_t PowerOfX(uint64_t bits) {
  uint32_t result = uint32_t{1} << 31;  // x^0
  uint32_t square = uint32_t{1} << 30;  // x^1
  for (; bits != 0; bits >>= 1) {
    if ((bits & 1) != 0) result = MultiplyModP(result, square);
    square = MultiplyModP(square, square);
  }
  return result;
}

uint64_t Load64(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(__x86_64__)
// The instruction has a latency of three cycles: three independent streams hide it.
constexpr size_t kStreamBytes = 1024;

__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(ByteSpan data, uint32_t crc) {
  static const uint32_t kShiftOne = PowerOfX(8 * kStreamBytes);
  static const uint32_t kShiftTwo = PowerOfX(16 * kStreamBytes);
  const std::byte* p = data.data();
  size_t left = data.size();
  uint64_t a = ~crc;
  for (; left >= 3 * kStreamBytes; left -= 3 * kStreamBytes, p += 3 * kStreamBytes) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      a = _mm_crc32_u64(a, Load64(p + i));
      b = _mm_crc32_u64(b, Load64(p + kStreamBytes + i));
      c = _mm_crc32_u64(c, Load64(p + 2 * kStreamBytes + i));
    }
    a = MultiplyModP(static_cast<uint32_t>(a), kShiftTwo) ^
        MultiplyModP(static_cast<uint32_t>(b), kShiftOne) ^ static_cast<uint32_t>(c);
  }
  for (; left >= 8; left -= 8, p += 8) a = _mm_crc32_u64(a, Load64(p));
  auto tail = static_cast<uint32_t>(a);
  for (; left > 0; --left, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return ~tail;
}
#endif

}  // namespace

uint32_t Crc32cPortable(ByteSpan data, uint32_t crc) {
  const std::byte* p = data.data();
  size_t left = data.size();
  crc = ~crc;
  for (; left >= 8; left -= 8, p += 8) {
    const uint64_t word = Load64(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; left > 0; --left, ++p) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*p)) & 0xff];
  }
  return ~crc;
}

uint32_t Crc32c(ByteSpan data, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return Crc32cSse42(data, crc);
#endif
  return Crc32cPortable(data, crc);
}

uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes) {
  return MultiplyModP(crc_a, PowerOfX(8 * b_bytes)) ^ crc_b;
}

}  // namespace pagoda
