#include "convert.h"

#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "buffer.h"

namespace pagoda::python {
namespace nb = nanobind;

absl::string_view TextOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::bytes PyBytes(absl::string_view text) { return nb::bytes(text.data(), text.size()); }

std::vector<nb::object> ElementsOf(nb::handle sequence, absl::string_view name) {
  const std::string message = absl::StrCat(name, ": a sequence is expected");
  const nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), message.c_str()));
  if (!fast.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  std::vector<nb::object> elements;
  elements.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    elements.push_back(nb::borrow(PySequence_Fast_GET_ITEM(fast.ptr(), i)));
  }
  return elements;
}

std::vector<PageKey> KeysOf(nb::handle sequence) {
  std::vector<PageKey> keys;
  for (const nb::object& element : ElementsOf(sequence, "keys")) {
    if (!nb::isinstance<nb::bytes>(element)) {
      throw nb::type_error(absl::StrCat("keys[", keys.size(), "]: bytes are expected").c_str());
    }
    keys.push_back(
        IdOf<PageKey>(nb::borrow<nb::bytes>(element), absl::StrCat("keys[", keys.size(), "]")));
  }
  return keys;
}

std::vector<uint32_t> TokensOf(nb::handle token_ids) {
  if (token_ids.is_none()) return {};
  Py_buffer view;
  if (PyObject_GetBuffer(token_ids.ptr(), &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) == 0) {
    std::vector<uint32_t> tokens;
    const bool fits = view.itemsize == 4 && view.format != nullptr &&
                      (std::strcmp(view.format, "I") == 0 || std::strcmp(view.format, "L") == 0);
    if (fits) {
      tokens.resize(static_cast<size_t>(view.len) / sizeof(uint32_t));
      std::memcpy(tokens.data(), view.buf, tokens.size() * sizeof(uint32_t));
    }
    PyBuffer_Release(&view);
    if (fits) return tokens;
  }
  PyErr_Clear();
  std::vector<uint32_t> tokens;
  for (const nb::object& element : ElementsOf(token_ids, "token_ids")) {
    const nb::object number = nb::steal(PyNumber_Index(element.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow != 0 || value < 0 || value > std::numeric_limits<uint32_t>::max()) {
      Raise(absl::InvalidArgumentError(absl::StrCat("token_ids[", tokens.size(), "] is ",
                                                    nb::str(number).c_str(),
                                                    "; accepted: 0 to 4294967295")));
    }
    tokens.push_back(static_cast<uint32_t>(value));
  }
  return tokens;
}

client::PagePart PartOf(std::pair<int64_t, int64_t> heads) {
  constexpr int64_t kMax = std::numeric_limits<uint16_t>::max();
  const auto [begin, count] = heads;
  if (begin < 0 || begin > kMax || count < 0 || count > kMax) {
    Raise(absl::InvalidArgumentError(absl::StrFormat(
        "part (%d, %d): first kv head and count are 0 to %d each", begin, count, kMax)));
  }
  client::PagePart part;
  part.head_begin = static_cast<uint16_t>(begin);
  part.head_count = static_cast<uint16_t>(count);
  return part;
}

std::vector<client::PagePart> PartsOf(nb::handle sequence) {
  std::vector<client::PagePart> parts;
  for (const nb::object& element : ElementsOf(sequence, "parts")) {
    const std::vector<nb::object> pair = ElementsOf(element, "a part");
    if (pair.size() != 2) {
      throw nb::type_error("a part is two numbers: the first kv head, and how many");
    }
    parts.push_back(PartOf({nb::cast<int64_t>(pair[0]), nb::cast<int64_t>(pair[1])}));
  }
  return parts;
}

Precision PrecisionOf(absl::string_view word, absl::string_view name) {
  if (word == PrecisionName(Precision::kOpaque)) return Precision::kOpaque;
  absl::StatusOr<Precision> precision = ParsePrecision(word);
  if (!precision.ok()) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat(name, " is '", word, "'; accepted: q2, q3, q4, q8, raw16 and opaque")));
  }
  return *precision;
}

absl::Duration SecondsOf(double seconds, absl::string_view name) {
  if (!(seconds >= 0)) {
    Raise(absl::InvalidArgumentError(
        absl::StrFormat("%s is %g; accepted: seconds, zero or more", name, seconds)));
  }
  return absl::Seconds(seconds);
}

}  // namespace pagoda::python
