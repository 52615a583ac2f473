// All pages that a simulated world can hold, made once and shared by all runs: real immutable pages
// in real host memory, so that the directory keeps exactly what it keeps in a daemon.
//
//   two scopes; in each four trees:  0 - 1 - 2 - 3 - 4 - 5
//                                            '- 6 - 7 - 8 - 9
//
// Every key has six forms: pushed at fidelity raw16 or q8, stored as raw16, q8 or q4.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/host_page.h"

namespace pagoda::simulation {

constexpr int kNoKey = -1;
constexpr int kForms = 6;
constexpr int kNoForm = -1;
constexpr int FormOf(int fidelity, int precision) { return 3 * fidelity + precision; }
constexpr int PrecisionIndexOf(int form) { return form % 3; }  // 0 raw16, 1 q8, 2 q4
constexpr int FidelityIndexOf(int form) { return form / 3; }   // 0 raw16, 1 q8

struct KnownPage {
  RecordKey record;
  ScopeId scope;
  int scope_index = 0;
  int parent = kNoKey;
  std::array<HostPagePtr, kForms> forms;
  int64_t bytes(int form) const { return forms[static_cast<size_t>(form)]->bytes(); }
};

class Universe {
 public:
  static constexpr int kScopes = 2;
  static constexpr int kTrees = 4;
  static constexpr int kTreePages = 10;
  Universe();

  int key_count() const { return static_cast<int>(pages_.size()); }
  const KnownPage& at(int key) const { return pages_[static_cast<size_t>(key)]; }
  const ScopeId& scope(int index) const { return scopes_[static_cast<size_t>(index)]; }
  // kNoKey for a key that is none of ours.
  int Find(const RecordKey& record) const;
  int FormOfPage(int key, const HostPagePtr& page) const;
  // From the root to `key`.
  std::vector<int> PathTo(int key) const;

 private:
  std::shared_ptr<HostTier> tier_;
  std::vector<KnownPage> pages_;
  std::array<ScopeId, kScopes> scopes_;
  absl::flat_hash_map<RecordKey, int> index_;
};

}  // namespace pagoda::simulation
