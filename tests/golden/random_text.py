"""Random valid texts, the same as client/worker/testing/random_text.cc: change both together."""

from splitmix64 import SplitMix64

SEED = 20260101
NUMBERS = [(0x30, 10), (0x660, 10), (0x6F0, 10), (0x966, 10), (0x9E6, 10), (0xE50, 10), (0xFF10, 10),
           (0x1D7CE, 50), (0x2460, 60), (0x2160, 40), (0xB2, 2), (0xBC, 3), (0x3021, 9)]
SCRIPTS = [(0x410, 64), (0x391, 57), (0x5D0, 27), (0x621, 42), (0xAC00, 11172), (0x3041, 86),
           (0x30A1, 90), (0x904, 54)]
SPACES = [0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x20, 0x20, 0x0A, 0x85, 0xA0, 0x1680, 0x2000, 0x2001,
          0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028, 0x2029, 0x202F,
          0x205F, 0x3000, 0x200B, 0x180E, 0xFEFF, 0x1C, 0x1F, 0x0D]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "'", " 's"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start", "<file_sep>"]


def pick(random, first, count):
    return chr(first + random.below(count))


def piece(random):
    kind = random.below(16)
    if kind <= 1:
        return pick(random, 0x20, 95)
    if kind <= 3:
        space = " " if random.below(2) == 1 else ""
        size = 1 + random.below(9)
        return space + "".join(pick(random, ord("a"), 26) for _ in range(size))
    if kind == 4:
        return pick(random, ord("A"), 26)
    if kind == 5:
        return pick(random, 0xA0, 0xE0)
    if kind == 6:
        return pick(random, 0x4E00, 0x5000)
    if kind == 7:
        return pick(random, 0x1F300, 0x350)
    if kind == 8:
        return pick(random, 0x300, 0x70)
    if kind == 9:
        return pick(random, 0, 0x20) if random.below(2) == 1 else pick(random, 0x7F, 0x21)
    if kind == 10:
        return pick(random, *NUMBERS[random.below(len(NUMBERS))])
    if kind == 11:
        space = chr(SPACES[random.below(len(SPACES))])
        return space * (1 + random.below(6))
    if kind == 12:
        return CONTRACTIONS[random.below(len(CONTRACTIONS))]
    if kind == 13:
        return pick(random, *SCRIPTS[random.below(len(SCRIPTS))])
    if kind == 14:
        code_point = random.below(0x110000 - 0x800)
        return chr(code_point if code_point < 0xD800 else code_point + 0x800)
    if random.below(4) == 0:
        return SPECIALS[random.below(len(SPECIALS))]
    character = chr(0x21 + random.below(94))
    return character * (1 + random.below(12))


def random_text(index):
    random = SplitMix64(SEED + index)
    count = 1 + random.below(48)
    return "".join(piece(random) for _ in range(count))
