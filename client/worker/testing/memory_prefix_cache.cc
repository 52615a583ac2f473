#include "client/worker/testing/memory_prefix_cache.h"

#include <algorithm>
#include <cstring>

#include "kernels/codec.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

std::string IdBytes(absl::Span<const uint32_t> ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint32_t));
}

void CopySegments(const std::vector<std::string>& from, PageBuffer& page) {
  PAGODA_CHECK(from.size() == page.mutable_segments().size());
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(page.mutable_segments()[i].data(), from[i].data(), from[i].size());
  }
}

}  // namespace

PrefixHit MemoryPrefixCache::Load(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) {
  const int64_t page_tokens = sequence.page_tokens();
  std::vector<Precision> precisions;
  for (int64_t end = page_tokens; end <= static_cast<int64_t>(prompt_ids.size());
       end += page_tokens) {
    const auto found = pages_.find(IdBytes(prompt_ids.subspan(0, end)));
    const bool usable =
        found != pages_.end() && found->second.fidelity >= sequence.options().precision;
    if (!usable || static_cast<int64_t>(precisions.size()) == pages_max) break;
    precisions.push_back(PrecisionOfPage(static_cast<int64_t>(precisions.size())));
  }
  PrefixHit hit;
  const int64_t page_count =
      sequence.UsablePages(precisions, static_cast<int64_t>(prompt_ids.size()));
  for (int64_t index = 0; index < page_count; ++index) {
    std::string key = IdBytes(prompt_ids.subspan(0, (index + 1) * page_tokens));
    const Entry& entry = pages_.at(key);
    PageBuffer raw = sequence.NewPage(index, Precision::kRaw16);
    CopySegments(entry.segments, raw);
    const Precision precision = PrecisionOfPage(index);
    PageBuffer page = sequence.NewPage(index, precision);
    if (precision == Precision::kRaw16) {
      page = std::move(raw);
    } else {
      PAGODA_CHECK(kernels::EncodePage(raw.header(), raw.segments(), page.mutable_header(),
                                       page.mutable_segments())
                       .ok());
    }
    hit.bytes += page.stored_bytes();
    if (!sequence.AppendLoaded(std::move(page), entry.fidelity).ok()) break;
    hit.tokens += page_tokens;
    hit.tier = "host";
    hit.precision = index == 0 ? precision : std::min(hit.precision, precision);
    request_ids_ = key;
    request_pages_.push_back(std::move(key));
  }
  return hit;
}

PrefixHit MemoryPrefixCache::LoadByLayer(absl::Span<const uint32_t> prompt_ids,
                                         KvSequence& sequence) {
  class Losing : public LayerSource {
   public:
    Losing(int layer, int64_t& count) : layer_(layer), count_(count) {}
    absl::Status WaitLayer(int32_t layer) override {
      return layer < layer_ ? absl::OkStatus() : Lose();
    }
    absl::Status WaitAll() override { return Lose(); }

   private:
    absl::Status Lose() {
      ++count_;
      return absl::AbortedError("lost on the way");
    }
    const int layer_;
    int64_t& count_;
  };
  PrefixHit hit = Load(prompt_ids, sequence);
  if (lost_layer >= 0) hit.layers = std::make_shared<Losing>(lost_layer, lost_count);
  return hit;
}

void MemoryPrefixCache::StorePage(const KvSequence& sequence, int64_t page_index,
                                  absl::Span<const uint32_t> page_ids) {
  PAGODA_CHECK(page_index == static_cast<int64_t>(request_pages_.size()));
  request_ids_ += IdBytes(page_ids);
  request_pages_.push_back(request_ids_);
  ++stored_count;
  Entry entry;
  entry.fidelity = sequence.fidelity(page_index);
  for (const ByteSpan segment : sequence.raw_page(page_index)->segments()) {
    entry.segments.emplace_back(AsText(segment));
  }
  const auto [found, inserted] = pages_.try_emplace(request_ids_, entry);
  if (inserted) return;
  if (entry.fidelity > found->second.fidelity) {
    found->second = std::move(entry);
  } else if (entry.fidelity == found->second.fidelity && entry.segments != found->second.segments) {
    ++conflict_count;
  }
}

void MemoryPrefixCache::Finish() {
  ++finish_count;
  request_ids_.clear();
  request_pages_.clear();
}

}  // namespace pagoda
