#include "client/worker/testing/random_text.h"

#include <array>

#include "client/worker/splitmix64.h"

namespace pagoda {
namespace {

constexpr uint64_t kSeed = 20260101;

struct Range {
  uint32_t first;
  uint32_t count;
};

constexpr std::array<Range, 13> kNumbers = {{{0x30, 10},
                                             {0x660, 10},
                                             {0x6f0, 10},
                                             {0x966, 10},
                                             {0x9e6, 10},
                                             {0xe50, 10},
                                             {0xff10, 10},
                                             {0x1d7ce, 50},
                                             {0x2460, 60},
                                             {0x2160, 40},
                                             {0xb2, 2},
                                             {0xbc, 3},
                                             {0x3021, 9}}};
constexpr std::array<Range, 8> kScripts = {{{0x410, 64},
                                            {0x391, 57},
                                            {0x5d0, 27},
                                            {0x621, 42},
                                            {0xac00, 11172},
                                            {0x3041, 86},
                                            {0x30a1, 90},
                                            {0x904, 54}}};
constexpr std::array<uint32_t, 34> kSpaces = {
    0x09,   0x0a,   0x0b,   0x0c,   0x0d,   0x20,   0x20,   0x20,   0x0a,   0x85,   0xa0,   0x1680,
    0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028,
    0x2029, 0x202f, 0x205f, 0x3000, 0x200b, 0x180e, 0xfeff, 0x1c,   0x1f,   0x0d};
constexpr std::array<const char*, 12> kContractions = {
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\xe2\x80\x99s", "'", " 's"};
constexpr std::array<const char*, 6> kSpecials = {"<|im_start|>", "<|im_end|>", "<|endoftext|>",
                                                  "<repo_name>",  "<|im_start", "<file_sep>"};

void AppendCodePoint(uint32_t code_point, std::string* text) {
  const auto append = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return append(code_point);
  if (code_point < 0x800) {
    append(0xc0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    append(0xe0 | code_point >> 12);
    append(0x80 | (code_point >> 6 & 0x3f));
  } else {
    append(0xf0 | code_point >> 18);
    append(0x80 | (code_point >> 12 & 0x3f));
    append(0x80 | (code_point >> 6 & 0x3f));
  }
  append(0x80 | (code_point & 0x3f));
}

void AppendFrom(const Range& range, SplitMix64* random, std::string* text) {
  AppendCodePoint(range.first + static_cast<uint32_t>(random->Below(range.count)), text);
}

void AppendRun(uint32_t code_point, uint64_t count, std::string* text) {
  for (uint64_t i = 0; i < count; ++i) AppendCodePoint(code_point, text);
}

void AppendAnything(SplitMix64* random, std::string* text) {
  auto code_point = static_cast<uint32_t>(random->Below(0x110000 - 0x800));
  if (code_point >= 0xd800) code_point += 0x800;  // leave out the surrogates
  AppendCodePoint(code_point, text);
}

// The order of calls to `random` is part of the format: random_text.py has the same.
void AppendPiece(SplitMix64* random, std::string* text) {
  switch (random->Below(16)) {
    case 0:
    case 1:
      return AppendFrom({0x20, 95}, random, text);
    case 2:
    case 3: {
      if (random->Below(2) == 1) text->push_back(' ');
      const uint64_t size = 1 + random->Below(9);
      for (uint64_t i = 0; i < size; ++i) AppendFrom({'a', 26}, random, text);
      return;
    }
    case 4:
      return AppendFrom({'A', 26}, random, text);
    case 5:
      return AppendFrom({0xa0, 0xe0}, random, text);
    case 6:
      return AppendFrom({0x4e00, 0x5000}, random, text);
    case 7:
      return AppendFrom({0x1f300, 0x350}, random, text);
    case 8:
      return AppendFrom({0x300, 0x70}, random, text);
    case 9:
      if (random->Below(2) == 1) return AppendFrom({0, 0x20}, random, text);
      return AppendFrom({0x7f, 0x21}, random, text);
    case 10:
      return AppendFrom(kNumbers[random->Below(kNumbers.size())], random, text);
    case 11: {
      const uint32_t space = kSpaces[random->Below(kSpaces.size())];
      return AppendRun(space, 1 + random->Below(6), text);
    }
    case 12:
      *text += kContractions[random->Below(kContractions.size())];
      return;
    case 13:
      return AppendFrom(kScripts[random->Below(kScripts.size())], random, text);
    case 14:
      return AppendAnything(random, text);
    default:
      if (random->Below(4) == 0) {
        *text += kSpecials[random->Below(kSpecials.size())];
      } else {
        const auto character = static_cast<uint32_t>(0x21 + random->Below(94));
        AppendRun(character, 1 + random->Below(12), text);
      }
  }
}

}  // namespace

std::string RandomText(uint64_t index) {
  SplitMix64 random(kSeed + index);
  std::string text;
  const uint64_t piece_count = 1 + random.Below(48);
  for (uint64_t i = 0; i < piece_count; ++i) AppendPiece(&random, &text);
  return text;
}

}  // namespace pagoda
