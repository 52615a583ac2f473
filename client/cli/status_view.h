// A daemon's status as text and as JSON; `status` shows it once, `top` again and again.
//
// Threads  pure functions
#pragma once

#include <string>

#include "client/cli/json_output.h"
#include "pagoda/v1/admin.pb.h"

namespace pagoda::cli {

// The keys that StatusJson() writes, for --help and README.
inline constexpr char kStatusJsonKeys[] =
    "JSON keys: version, instance_id, uptime_seconds, state, listen, data_dir,\n"
    "  tiers[] {tier, present, capacity_bytes, used_bytes, reserved_bytes, pages,\n"
    "           pages_by_precision {raw16, q8, q4, q3, q2}},\n"
    "  paths[] {path, bytes_out, bytes_in, fetches, pushed_pages, failures, fetch_p50_seconds,\n"
    "           fetch_p99_seconds, push_p50_seconds, push_p99_seconds},\n"
    "  pages, sessions, sequences, leases, leased_pages, staged_pages, staged_bytes,\n"
    "  pinned_pages, persist_queue_pages, unflushed_pages, encode_queue_pages,\n"
    "  counters {NAME: total since the start}\n";

Json StatusJson(const v1::StatusResponse& status);

// "pagodad 0.1.0 serving at ... for ..." and the like: one line.
std::string StatusHeadline(const v1::StatusResponse& status);
// One row per tier that is present, with a bar; a line for each that is absent.
std::string TierTable(const v1::StatusResponse& status);
// Sessions, leases, queues: three lines.
std::string ActivityLines(const v1::StatusResponse& status);
// One line for each path by which pages came or went; empty: none did.
std::string PathLines(const v1::StatusResponse& status);
// All counters, by name.
std::string CounterTable(const v1::StatusResponse& status);

}  // namespace pagoda::cli
