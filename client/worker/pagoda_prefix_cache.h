// PrefixCache over a Pagoda daemon: looks the prompt up in one scope, fetches what the sequence can
// use, and pushes the pages the worker computes. What leaves the window is encoded by the worker
// and by the daemon alike: the codec gives both the same bytes, in less time than a fetch takes.
//
// A daemon that is away, slow or full costs at most the client's timeouts, once; then everything is
// computed here. The client comes back to the daemon by itself, for the next request.
//
// Threads    one request at a time, from one thread, as PrefixCache says.
// Ownership  the client must outlive this.
#pragma once

#include <memory>
#include <vector>

#include "client/client.h"
#include "client/worker/prefix_cache.h"
#include "storage/base/scope.h"

namespace pagoda {

class PagodaPrefixCache : public PrefixCache {
 public:
  // Pages are shared as `scope` says; a scope that the caller may only read is read.
  PagodaPrefixCache(client::Client& client, Scope scope) : client_(client), scope_(scope) {}
  ~PagodaPrefixCache() override { Finish(); }

  PrefixHit Load(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) override {
    return LoadFound(prompt_ids, sequence, /*by_layer=*/false);
  }
  PrefixHit LoadByLayer(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) override {
    return LoadFound(prompt_ids, sequence, /*by_layer=*/true);
  }
  void StorePage(const KvSequence& sequence, int64_t page_index,
                 absl::Span<const uint32_t> page_ids) override;
  void Advance(int64_t token_count) override;
  void Finish() override;

  // Why the last request could not use the daemon as it wanted; OK if it could.
  const absl::Status& last_problem() const { return last_problem_; }

 private:
  PrefixHit LoadFound(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence, bool by_layer);
  PrefixHit LoadPages(int64_t usable_pages, const client::LookupResult& hit, KvSequence& sequence);
  // Of the leading pages that queries read at one precision, and nobody changes before.
  PrefixHit LoadLayers(int64_t usable_pages, const client::LookupResult& hit, KvSequence& sequence);
  // Appends pages [begin, end), fetched as `at_most` says. False: one of them is not there.
  bool FetchPages(const client::LookupResult& hit, int64_t begin, int64_t end, Precision at_most,
                  KvSequence& sequence, PrefixHit& result);
  // False: it is no page for this sequence, and stays with the caller.
  bool Append(PageBuffer& page, client::PageTier tier, KvSequence& sequence, PrefixHit& result);
  client::LookupQuery QueryFor(const KvSequence& sequence, absl::Span<const PageKey> keys) const;
  void Note(absl::Status status);

  client::Client& client_;
  const Scope scope_;

  // Of the request in progress.
  std::optional<client::ScopeInfo> info_;  // nothing: the daemon is not used
  client::SequenceId sequence_id_;
  int64_t announced_tokens_ = 0;  // the sequence's length as the daemon knows it
  std::vector<PageKey> keys_;     // of all full pages known so far
  int64_t loaded_pages_ = 0;      // those that came from the daemon
  std::unique_ptr<client::Pusher> pusher_;
  bool push_failed_ = false;
  absl::Status last_problem_;
};

}  // namespace pagoda
