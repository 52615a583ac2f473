// Where the worker looks for pages of a prompt before it computes them, and where it leaves the
// pages it computed. The interface only: the one over Pagoda's client, and fakes in tests,
// implement it. A cache is never needed for an answer: every failure inside is a miss, or a page
// not stored.
//
// Contract   a page that is handed out in raw16 has exactly the bytes that were stored for the same
//            tokens; an encoded one those that kernels::EncodePage makes of them.
// Threads    the worker calls from one thread at a time.
// Ownership  a cache belongs to one request at a time, from Load() to Finish().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/worker/kv_sequence.h"
#include "client/worker/page_buffer.h"
#include "storage/base/precision.h"

namespace pagoda {

// The bytes of loaded pages, on their way layer by layer.
//
// Threads  one at a time      Errors  not OK: the pages are lost, and what was computed over them
class LayerSource {
 public:
  virtual ~LayerSource() = default;
  // Until every page has this layer and those before it.
  virtual absl::Status WaitLayer(int32_t layer) = 0;
  // Until all bytes are there. The last call.
  virtual absl::Status WaitAll() = 0;
};

struct PrefixHit {
  int64_t tokens = 0;                      // loaded, a whole number of pages
  std::string tier = "none";               // the slowest that served: host, ssd, peer, none
  Precision precision = Precision::kNone;  // the lowest among the loaded pages
  int64_t bytes = 0;                       // moved into the sequence
  std::shared_ptr<LayerSource> layers;     // of LoadByLayer(); null: all bytes are there
};

class PrefixCache {
 public:
  virtual ~PrefixCache() = default;

  // Appends the leading pages of `prompt_ids` that the cache has, in order, by
  // KvSequence::NewPage() and AppendLoaded(); as many as KvSequence::UsablePages() allows. A
  // failure on the way makes the hit shorter. REQUIRES: an empty sequence.
  virtual PrefixHit Load(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) = 0;
  // The same, but without waiting for the bytes of pages where PrefixHit::layers is set: nobody may
  // read a layer of the sequence before that says so. When it fails, the request begins anew.
  virtual PrefixHit LoadByLayer(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) {
    return Load(prompt_ids, sequence);
  }

  // Page `page_index` is complete and its K and V are canonical: they are what prefill gives, and
  // do not change any more. Its raw16 form and its fidelity are in `sequence`, its tokens are
  // `page_ids`. The bytes must be copied before returning; sending them may go on afterwards.
  // Called in order, also for pages that Load() gave in raw16 or not at all, never for encoded
  // ones.
  virtual void StorePage(const KvSequence& sequence, int64_t page_index,
                         absl::Span<const uint32_t> page_ids) = 0;

  // The sequence has grown to this length: its window has moved.
  virtual void Advance(int64_t token_count) = 0;

  // The request is over, however it ended.
  virtual void Finish() = 0;
};

}  // namespace pagoda
