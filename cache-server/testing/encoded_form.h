// The encoded form of a pushed page, made here from its rows: what a daemon may answer, to the
// byte.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "cache-server/testing/test_pages.h"
#include "kernels/aligned_buffer.h"
#include "kernels/codec.h"
#include "storage/base/check.h"

namespace pagoda {

struct EncodedForm {
  PageHeader header;
  std::vector<std::string> segments;  // payloads
};

// `like` is the header of any form of the page that a daemon answered.
inline EncodedForm EncodedFormOf(const PageHeader& like, const TestPage& pushed,
                                 Precision precision, kernels::KLoLayers k_lo_layers = {}) {
  PageHeader raw = like;
  raw.planes.clear();
  raw.segments.clear();
  raw.rotation = Rotation::kNone;
  raw.recipe = CodeRecipe::kNone;
  kernels::AppendPlanes(Precision::kRaw16, kernels::ShapeOf(raw), raw);
  EncodedForm form;
  form.header = *kernels::PlanEncodedHeader(raw, precision, k_lo_layers);
  std::vector<kernels::AlignedBuffer> sources;
  std::vector<ByteSpan> source_spans;
  for (const std::string& segment : pushed.segments) {
    sources.emplace_back(static_cast<int64_t>(segment.size()));
    std::memcpy(sources.back().data(), segment.data(), segment.size());
    source_spans.push_back(sources.back().span());
  }
  std::vector<kernels::AlignedBuffer> targets;
  std::vector<MutableByteSpan> target_spans;
  for (const SegmentEntry& segment : form.header.segments) {
    targets.emplace_back(segment.stored_bytes());
    target_spans.push_back(targets.back().mutable_span());
  }
  PAGODA_CHECK(kernels::EncodePage(raw, source_spans, form.header, target_spans).ok());
  for (size_t i = 0; i < targets.size(); ++i) {
    form.segments.emplace_back(
        AsText(targets[i].span().subspan(0, form.header.segments[i].length)));
  }
  return form;
}

}  // namespace pagoda
