#include "storage/base/crc32c.h"

#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
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
template <size_t kStreamBytes>
__attribute__((target("sse4.2"))) uint64_t ThreeStreams(const std::byte*& p, size_t& left,
                                                        uint64_t a) {
  static const uint32_t kShiftOne = PowerOfX(8 * kStreamBytes);
  static const uint32_t kShiftTwo = PowerOfX(16 * kStreamBytes);
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
  return a;
}

// `crc` without the inversion at either end.
__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(const std::byte* p, size_t left,
                                                       uint32_t crc) {
  uint64_t a = ThreeStreams<4096>(p, left, crc);  // joining streams costs as much as some 500 bytes
  a = ThreeStreams<512>(p, left, a);
  for (; left >= 8; left -= 8, p += 8) a = _mm_crc32_u64(a, Load64(p));
  auto tail = static_cast<uint32_t>(a);
  for (; left > 0; --left, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return tail;
}

// Multiplies polynomials, 16 products at once: four times as fast. 256 bytes are folded onto the
// 256 behind them, until 16 are left whose CRC is that of all of them (Gopal and others, "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
#define PAGODA_FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

struct FoldBy {
  explicit FoldBy(uint64_t bits)
      : low(uint64_t{PowerOfX(bits + 32)} << 1), high(uint64_t{PowerOfX(bits - 32)} << 1) {}
  uint64_t low;   // for the earlier 8 of 16 bytes
  uint64_t high;  // for the later
};

PAGODA_FOLD_TARGET inline __m512i Fold(__m512i x, __m512i by, __m512i onto) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00),
                                   _mm512_clmulepi64_epi128(x, by, 0x11), onto, 0x96);
}

PAGODA_FOLD_TARGET inline __m128i Fold(__m128i x, __m128i by, __m128i onto) {
  return _mm_ternarylogic_epi64(_mm_clmulepi64_si128(x, by, 0x00),
                                _mm_clmulepi64_si128(x, by, 0x11), onto, 0x96);
}

PAGODA_FOLD_TARGET inline __m512i Wide(const FoldBy& by) {
  return _mm512_set4_epi64(static_cast<int64_t>(by.high), static_cast<int64_t>(by.low),
                           static_cast<int64_t>(by.high), static_cast<int64_t>(by.low));
}

constexpr size_t kFoldBytes = 256;

// REQUIRES: left >= kFoldBytes.
PAGODA_FOLD_TARGET uint32_t Crc32cAvx512(const std::byte* p, size_t left, uint32_t crc) {
  static const FoldBy kBy2048(2048);
  static const FoldBy kBy512(512);
  static const FoldBy kBy128(128);
  __m512i x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm512_loadu_si512(p + 64 * i);
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  p += kFoldBytes;
  left -= kFoldBytes;
  const __m512i by_2048 = Wide(kBy2048);
  for (; left >= kFoldBytes; left -= kFoldBytes, p += kFoldBytes) {
    for (int i = 0; i < 4; ++i) x[i] = Fold(x[i], by_2048, _mm512_loadu_si512(p + 64 * i));
  }
  const __m512i by_512 = Wide(kBy512);
  for (int i = 1; i < 4; ++i) x[i] = Fold(x[i - 1], by_512, x[i]);
  const __m128i by_128 =
      _mm_set_epi64x(static_cast<int64_t>(kBy128.high), static_cast<int64_t>(kBy128.low));
  __m128i y = _mm512_castsi512_si128(x[3]);
  y = Fold(y, by_128, _mm512_extracti32x4_epi32(x[3], 1));
  y = Fold(y, by_128, _mm512_extracti32x4_epi32(x[3], 2));
  y = Fold(y, by_128, _mm512_extracti32x4_epi32(x[3], 3));
  uint64_t folded = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(y, 0)));
  folded = _mm_crc32_u64(folded, static_cast<uint64_t>(_mm_extract_epi64(y, 1)));
  return Crc32cSse42(p, left, static_cast<uint32_t>(folded));
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

std::vector<Crc32cWay> Crc32cWays() {
  std::vector<Crc32cWay> ways = {{"portable", Crc32cPortable}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    ways.push_back({"sse4.2", [](ByteSpan data, uint32_t crc) {
                      return ~Crc32cSse42(data.data(), data.size(), ~crc);
                    }});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("vpclmulqdq")) {
    ways.push_back({"avx512", [](ByteSpan data, uint32_t crc) {
                      const bool folds = data.size() >= kFoldBytes;
                      return ~(folds ? Crc32cAvx512(data.data(), data.size(), ~crc)
                                     : Crc32cSse42(data.data(), data.size(), ~crc));
                    }});
  }
#endif
  return ways;
}

uint32_t Crc32c(ByteSpan data, uint32_t crc) {
  static const auto kBest = Crc32cWays().back().function;
  return kBest(data, crc);
}

uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes) {
  return MultiplyModP(crc_a, PowerOfX(8 * b_bytes)) ^ crc_b;
}

}  // namespace pagoda
