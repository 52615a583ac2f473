// The models that clients announced, by identity, with the ladder that each one's pages come down.
// Kept in a small JSON file, so that a restarted daemon still knows the shapes of what is on SSD.
//
// Threads  every method from any thread. SaveIfChanged() does its I/O without a lock held; one
//          caller at a time.
// Errors   RESOURCE_EXHAUSTED  models_max
//          NOT_FOUND           no such identity
//          UNAVAILABLE         the file cannot be written
//          INVALID_ARGUMENT    a ladder for opaque pages
// A file that cannot be read is logged and ignored: clients announce their models again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cache-server/options.h"
#include "storage/base/model_spec.h"
#include "storage/base/precision.h"

namespace pagoda {

struct KnownModel {
  Identity identity;
  ModelSpec spec;
  Ladder ladder;
  uint32_t page_tokens = 0;          // as last announced
  std::vector<int32_t> k_lo_layers;  // of its profile; empty: none, or it is not used
  std::string profile_problem;  // why the configured profile is not used; empty: it is, or none
};

class ModelRegistry {
 public:
  // `path` may be empty: nothing is kept.
  ModelRegistry(const LadderOptions& ladder, uint32_t models_max, std::string path);

  // Adds a model, or notes its page size again. Returns where its ladder begins.
  absl::StatusOr<Precision> Announce(const Identity& identity, const ModelSpec& spec,
                                     uint32_t page_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<KnownModel> Find(const Identity& identity) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The standard ladder for an identity that is not known.
  Ladder LadderOf(const Identity& identity) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Layers whose K keeps its lo plane at q4.
  std::vector<int32_t> KLoLayersOf(const Identity& identity) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets where the ladder begins; its other steps stay as configured. An absent identity means
  // every model but those of opaque pages; one of them is INVALID_ARGUMENT.
  absl::Status SetLadder(const std::optional<Identity>& identity, Precision ladder)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<KnownModel> All() const ABSL_LOCKS_EXCLUDED(mutex_);

  void Load();
  absl::Status SaveIfChanged() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Opaque pages stay as they are: nobody here can read them.
  Ladder ConfiguredLadder(const ModelSpec& spec) const;
  // Looks up its profile and says in the log if that is of another model.
  void TakeProfile(KnownModel& model) const;

  const LadderOptions configured_;
  const uint32_t models_max_;
  const std::string path_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Identity, KnownModel> models_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pagoda
