// Python's values as the library's, and back. Whatever cannot be is refused by name.
//
// Threads  with the GIL
// Errors   INVALID_ARGUMENT  raised as PagodaError; wrong types are Python's TypeError
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "errors.h"
#include "storage/base/digest.h"
#include "storage/base/precision.h"

namespace pagoda::python {

absl::string_view TextOf(const nanobind::bytes& bytes);
nanobind::bytes PyBytes(absl::string_view text);
inline nanobind::str PyStr(absl::string_view text) {
  return nanobind::str(text.data(), text.size());
}

template <typename Id>
Id IdOf(const nanobind::bytes& bytes, absl::string_view name) {
  absl::StatusOr<Id> id = Id::FromBytes(TextOf(bytes));
  if (!id.ok()) {
    Raise(
        absl::InvalidArgumentError(std::string(name) + ": " + std::string(id.status().message())));
  }
  return *id;
}
// Zero where there are no bytes.
template <typename Id>
Id OptionalIdOf(const nanobind::bytes& bytes, absl::string_view name) {
  return bytes.size() == 0 ? Id() : IdOf<Id>(bytes, name);
}

// The elements of any sequence; a TypeError for others.
std::vector<nanobind::object> ElementsOf(nanobind::handle sequence, absl::string_view name);
std::vector<PageKey> KeysOf(nanobind::handle sequence);
// Whole numbers of 32 bits: a sequence, or an array of uint32, which is read at once. None is none.
std::vector<uint32_t> TokensOf(nanobind::handle token_ids);
// (first kv head, count) each, of group 0.
std::vector<client::PagePart> PartsOf(nanobind::handle sequence);
client::PagePart PartOf(std::pair<int64_t, int64_t> heads);

// "q2", ..., "raw16" and "opaque".
Precision PrecisionOf(absl::string_view word, absl::string_view name);

// Zero or more; infinity is for ever.
absl::Duration SecondsOf(double seconds, absl::string_view name);

}  // namespace pagoda::python
