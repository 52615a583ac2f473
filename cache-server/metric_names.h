// Every metric of the daemon: its name, kind, labels and meaning. Dashboards and alerts may name no
// other. Label values come from enums or from the configuration, so that the number of series is
// bounded: no keys, no addresses, no names that clients choose beyond the first few models.
//
// Labels  tier       hbm, host, ssd, peer      precision  raw16, q8, q4, q3, q2
//         model      configured names and the first few announced; the rest is "other"
//         source     sequence, hint, return, next_page, hotness (of a prefetch)
//         tenant     names of the token file, at most 200; the rest is "other"
//         code       gRPC status codes          method    RPC names
#pragma once

#include <array>

#include "absl/strings/string_view.h"

namespace pagoda {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricInfo {
  const char* name;
  MetricKind kind;
  const char* labels;  // comma-separated, "" for none
  const char* help;
};

// clang-format off
namespace metric {
using enum MetricKind;
// Lookup
inline constexpr MetricInfo kLookupRequests{"pagoda_lookup_requests_total", kCounter, "model,result", "Lookups by result: hit (all keys), partial, miss, error."};
inline constexpr MetricInfo kLookupRequestedTokens{"pagoda_lookup_requested_tokens_total", kCounter, "model", "Tokens of the longest chain of each lookup."};
inline constexpr MetricInfo kLookupHitTokens{"pagoda_lookup_hit_tokens_total", kCounter, "model,tier,precision", "Tokens found, contiguous prefix only; the sum over tier is the total."};
inline constexpr MetricInfo kTenantLookupTokens{"pagoda_tenant_lookup_tokens_total", kCounter, "tenant,result", "Tokens looked up by tenant: hit or miss."};
inline constexpr MetricInfo kLookupHitPages{"pagoda_lookup_hit_pages_total", kCounter, "tier", "Pages found, by the tier where they were."};
inline constexpr MetricInfo kLookupPrefixPages{"pagoda_lookup_prefix_pages", kHistogram, "", "Pages of the prefix that a lookup found."};
inline constexpr MetricInfo kPrecisionLookups{"pagoda_precision_lookups_total", kCounter, "precision_class,result", "Pages looked up by what was asked: high (q8 or better) or low; hit or miss."};
inline constexpr MetricInfo kCrossShareTokens{"pagoda_tenant_cross_share_tokens_total", kCounter, "scope", "Tokens found by the scope they were found in: private, group, public."};
// Push
inline constexpr MetricInfo kPutPages{"pagoda_put_pages_total", kCounter, "result", "Pages pushed: stored, duplicate, replaced, or why not."};
inline constexpr MetricInfo kPutBytes{"pagoda_put_bytes_total", kCounter, "tenant,precision", "Payload bytes of pages stored or replaced."};
inline constexpr MetricInfo kCommitSeconds{"pagoda_commit_seconds", kHistogram, "", "From a page's first byte to its commit."};
inline constexpr MetricInfo kPusherMismatch{"pagoda_pusher_mismatch_total", kCounter, "", "Pushes of a stored key with other bytes from the same arithmetic."};
// Tiers
inline constexpr MetricInfo kTierCapacity{"pagoda_tier_capacity_bytes", kGauge, "tier", "Bytes the tier may hold."};
inline constexpr MetricInfo kTierUsed{"pagoda_tier_used_bytes", kGauge, "tier", "Bytes in use: pages, and on host what is being pushed or read."};
inline constexpr MetricInfo kTierReserved{"pagoda_tier_reserved_bytes", kGauge, "tier", "Bytes taken, holes inside chunks included."};
inline constexpr MetricInfo kTierPinned{"pagoda_tier_pinned_bytes", kGauge, "tier", "Bytes of pinned or leased pages."};
inline constexpr MetricInfo kTierPages{"pagoda_tier_pages", kGauge, "tier,precision", "Pages with a copy in the tier."};
inline constexpr MetricInfo kTierFragmentation{"pagoda_tier_fragmentation_ratio", kGauge, "tier", "Share of the reserved bytes that hold no page."};
inline constexpr MetricInfo kTierLingering{"pagoda_tier_lingering_bytes", kGauge, "tier", "Bytes of pages that were dropped or replaced and are still read."};
inline constexpr MetricInfo kTierUnaccounted{"pagoda_tier_unaccounted_bytes", kGauge, "tier", "Used bytes that no page accounts for: 0, but while a change of SSD is on its way."};
inline constexpr MetricInfo kScopeBytes{"pagoda_scope_page_bytes", kGauge, "tier,scope", "Bytes of pages by scope: private:TENANT, group:NAME, public; other: in no token."};
inline constexpr MetricInfo kDirectoryMemory{"pagoda_directory_memory_bytes", kGauge, "", "Memory of the directory and the eviction policies."};
inline constexpr MetricInfo kCompactedBytes{"pagoda_compacted_bytes_total", kCounter, "", "Bytes moved in host memory to empty sparse chunks."};
inline constexpr MetricInfo kCompactedChunks{"pagoda_compacted_chunks_total", kCounter, "", "Chunks of host memory that were emptied by moving pages."};
inline constexpr MetricInfo kTierWatermark{"pagoda_tier_watermark_ratio", kGauge, "tier,kind", "Marks: high (demotion starts), low (it stops), hard (new bytes are refused)."};
inline constexpr MetricInfo kPages{"pagoda_pages", kGauge, "", "Distinct pages in any tier."};
// Eviction and movement
inline constexpr MetricInfo kEvictedPages{"pagoda_evicted_pages_total", kCounter, "tier,reason,action", "Pages that left a tier: dropped or demoted."};
inline constexpr MetricInfo kEvictedBytes{"pagoda_evicted_bytes_total", kCounter, "tier,reason,action", "Bytes that left a tier."};
inline constexpr MetricInfo kPromotedBytes{"pagoda_promoted_bytes_total", kCounter, "from,to", "Bytes brought up from a lower tier."};
inline constexpr MetricInfo kDemotedBytes{"pagoda_demoted_bytes_total", kCounter, "from,to", "Bytes that moved down to a lower tier."};
inline constexpr MetricInfo kTransferBytes{"pagoda_transfer_bytes_total", kCounter, "path,direction", "Page bytes into (in) and out of (out) host memory, by path."};
inline constexpr MetricInfo kTransferFailures{"pagoda_transfer_failures_total", kCounter, "path,direction", "Transfers that ended in an error."};
inline constexpr MetricInfo kTransferSeconds{"pagoda_transfer_seconds", kHistogram, "path,direction", "One Fetch (out) or one pushed page (in); over shm out is telling where pages lie."};
inline constexpr MetricInfo kInflightTransfers{"pagoda_inflight_transfers", kGauge, "path,direction", "Fetch and Push streams that are open."};
// Device memory
inline constexpr MetricInfo kHbmPromotions{"pagoda_hbm_promotions_total", kCounter, "result", "Pages wanted in device memory: copied, refused (no room, or the device would not), failed (on their way)."};
inline constexpr MetricInfo kHbmPromotedBytes{"pagoda_hbm_promoted_bytes_total", kCounter, "", "Bytes copied from host memory to device memory."};
inline constexpr MetricInfo kHbmEvictedPages{"pagoda_hbm_evicted_pages_total", kCounter, "", "Pages that made way for others in device memory; they are still in lower tiers."};
inline constexpr MetricInfo kHbmLost{"pagoda_hbm_lost", kGauge, "", "1 when the device is lost: restart pagodad to use it again."};
inline constexpr MetricInfo kPeerLinks{"pagoda_peer_links", kGauge, "", "Links to workers on other GPUs, those that are joined or end included."};
inline constexpr MetricInfo kDeviceFallbacks{"pagoda_device_fallbacks_total", kCounter, "reason", "Pages, and workers, sent to host memory instead: absent, other_device, export, lost, room, loading, scope, limit."};
// Prefetch
inline constexpr MetricInfo kPrefetchAsked{"pagoda_prefetch_asked_total", kCounter, "source", "Pages that a source asked to bring up; they are loaded or dropped."};
inline constexpr MetricInfo kPrefetchLoaded{"pagoda_prefetch_loaded_total", kCounter, "source", "Pages brought up from SSD ahead of a request."};
inline constexpr MetricInfo kPrefetchUsed{"pagoda_prefetch_used_total", kCounter, "source", "Loaded pages that a request then found in memory: in time."};
inline constexpr MetricInfo kPrefetchLate{"pagoda_prefetch_late_total", kCounter, "source", "Loaded pages that a request asked for while they were still loading."};
inline constexpr MetricInfo kPrefetchUnused{"pagoda_prefetch_unused_total", kCounter, "source", "Loaded pages that left memory without being used."};
inline constexpr MetricInfo kPrefetchVictims{"pagoda_prefetch_victims_total", kCounter, "source", "Pages that made way; all colder, and still on SSD."};
inline constexpr MetricInfo kPrefetchDropped{"pagoda_prefetch_dropped_total", kCounter, "source,reason", "Asked and not brought up: deadline, queue_full, resident, gone, cancelled, failed."};
inline constexpr MetricInfo kPrefetchDemanded{"pagoda_prefetch_demanded_total", kCounter, "", "Pages that a request found on SSD and nobody had brought up."};
inline constexpr MetricInfo kPrefetchQueue{"pagoda_prefetch_queue_pages", kGauge, "", "Pages waiting to be brought up."};
// Precision
inline constexpr MetricInfo kEncodedPages{"pagoda_encoded_pages_total", kCounter, "precision,place", "Pages brought to a precision: ladder (in the background), pressure (memory is short), ssd (for the copy there), fetch (for one answer)."};
inline constexpr MetricInfo kShedBytes{"pagoda_shed_bytes_total", kCounter, "precision,place", "Host bytes freed by moving pages to this precision: ladder, or pressure (memory was above its watermark)."};
inline constexpr MetricInfo kEncodeSeconds{"pagoda_encode_seconds", kHistogram, "precision", "Encoding one page."};
inline constexpr MetricInfo kEncodeFailures{"pagoda_encode_failures_total", kCounter, "reason", "Pages that could not be encoded: values (NaN, infinity), room, other."};
inline constexpr MetricInfo kEncodeQueue{"pagoda_encode_queue_pages", kGauge, "", "Pages waiting for the background encoder."};
inline constexpr MetricInfo kEncodeRefusals{"pagoda_encode_queue_refusals_total", kCounter, "", "Pages that found the queue full; a later scan takes them."};
// RPC
inline constexpr MetricInfo kRpcRequests{"pagoda_rpc_requests_total", kCounter, "method,code", "Calls that ended."};
inline constexpr MetricInfo kRpcSeconds{"pagoda_rpc_seconds", kHistogram, "method", "Duration of calls; streams from first to last message."};
inline constexpr MetricInfo kRpcInflight{"pagoda_rpc_inflight", kGauge, "method", "Calls that are running."};
inline constexpr MetricInfo kRpcRejected{"pagoda_rpc_rejected_total", kCounter, "reason", "Calls refused: authn, authz, limit (of Limits), unavailable."};
// SSD
inline constexpr MetricInfo kConnectionsRefused{"pagoda_connections_refused_total", kCounter, "reason", "Attempts to accept a connection that failed: descriptors, memory, other."};
inline constexpr MetricInfo kSsdRead{"pagoda_ssd_read_seconds", kHistogram, "", "Reading one page from SSD."};
inline constexpr MetricInfo kSsdWrite{"pagoda_ssd_write_seconds", kHistogram, "", "Writing one page to SSD."};
inline constexpr MetricInfo kSsdErrors{"pagoda_ssd_io_errors_total", kCounter, "op", "Reads and writes that failed."};
inline constexpr MetricInfo kSsdRefusals{"pagoda_ssd_write_refusals_total", kCounter, "", "Pages that found the write queue full."};
inline constexpr MetricInfo kSsdQueue{"pagoda_ssd_write_queue_pages", kGauge, "", "Pages waiting to be written."};
inline constexpr MetricInfo kSsdUnflushed{"pagoda_ssd_unflushed_pages", kGauge, "", "Changes on SSD that a kill at this moment would lose."};
inline constexpr MetricInfo kSsdFileBytes{"pagoda_ssd_file_bytes", kGauge, "", "What the extent files take on the disk, in use or not."};
inline constexpr MetricInfo kSsdBreaker{"pagoda_ssd_breaker_state", kGauge, "", "0: the disk is used; 1: set aside after errors; 2: being tried."};
inline constexpr MetricInfo kSsdBreakerTrips{"pagoda_ssd_breaker_trips_total", kCounter, "reason", "Times the disk was set aside: errors, slow, hung, probe (still sick)."};
inline constexpr MetricInfo kSsdLoadsLate{"pagoda_ssd_loads_late_total", kCounter, "", "Loads answered as misses because their read had not ended by the deadline."};
inline constexpr MetricInfo kDirtyPages{"pagoda_dirty_pages", kGauge, "", "Pages in host memory only, or newer there than on SSD."};
// Integrity
inline constexpr MetricInfo kIntegrityFailures{"pagoda_integrity_failures_total", kCounter, "tier,kind", "Bytes that failed a check; the page became a miss."};
// Clients
inline constexpr MetricInfo kSessions{"pagoda_sessions", kGauge, "", "Open sessions."};
inline constexpr MetricInfo kSessionsEnded{"pagoda_sessions_ended_total", kCounter, "reason", "Sessions that ended: closed, timeout, shutdown."};
inline constexpr MetricInfo kSequences{"pagoda_sequences", kGauge, "", "Open sequences."};
inline constexpr MetricInfo kLeases{"pagoda_leases", kGauge, "", "Leases held."};
inline constexpr MetricInfo kLeasedPages{"pagoda_leased_pages", kGauge, "", "Pages under leases."};
inline constexpr MetricInfo kLeasesExpired{"pagoda_leases_expired_total", kCounter, "", "Leases that ended by themselves."};
inline constexpr MetricInfo kStagedBytes{"pagoda_staged_bytes", kGauge, "", "Bytes of pages being pushed or encoded."};
// What engines report
inline constexpr MetricInfo kTtft{"pagoda_ttft_seconds", kHistogram, "cache", "Time to first token as reported: cold (no hit), partial, warm (90 % of the prompt)."};
inline constexpr MetricInfo kDecodeTokens{"pagoda_decode_tokens_total", kCounter, "", "Tokens decoded, as reported."};
inline constexpr MetricInfo kPrefillSaved{"pagoda_prefill_tokens_saved_total", kCounter, "", "Prompt tokens that came from the cache, as reported."};
// Process
inline constexpr MetricInfo kBuildInfo{"pagoda_build_info", kGauge, "version", "Always 1; the label names the version."};
inline constexpr MetricInfo kDraining{"pagoda_draining", kGauge, "", "1 while the daemon refuses new sessions."};
inline constexpr MetricInfo kProcessCpu{"process_cpu_seconds_total", kCounter, "", "User and system CPU time."};
inline constexpr MetricInfo kProcessResident{"process_resident_memory_bytes", kGauge, "", "Resident memory."};
inline constexpr MetricInfo kProcessVirtual{"process_virtual_memory_bytes", kGauge, "", "Virtual memory."};
inline constexpr MetricInfo kProcessFds{"process_open_fds", kGauge, "", "Open file descriptors."};
inline constexpr MetricInfo kProcessFdsMax{"process_max_fds", kGauge, "", "Most file descriptors allowed."};
inline constexpr MetricInfo kProcessThreads{"process_threads", kGauge, "", "Threads."};
inline constexpr MetricInfo kProcessStart{"process_start_time_seconds", kGauge, "", "Start, in seconds since 1970."};
}  // namespace metric
// clang-format on

// All of the above, for tests of documents and dashboards.
inline constexpr std::array kAllMetrics = {
    metric::kLookupRequests,   metric::kLookupRequestedTokens,
    metric::kLookupHitTokens,  metric::kTenantLookupTokens,
    metric::kLookupHitPages,   metric::kLookupPrefixPages,
    metric::kPrecisionLookups, metric::kCrossShareTokens,
    metric::kPutPages,         metric::kPutBytes,
    metric::kCommitSeconds,    metric::kPusherMismatch,
    metric::kTierCapacity,     metric::kTierUsed,
    metric::kTierReserved,     metric::kTierPinned,
    metric::kTierPages,        metric::kTierFragmentation,
    metric::kTierLingering,    metric::kTierUnaccounted,
    metric::kScopeBytes,       metric::kDirectoryMemory,
    metric::kCompactedBytes,   metric::kCompactedChunks,
    metric::kTierWatermark,    metric::kPages,
    metric::kEvictedPages,     metric::kEvictedBytes,
    metric::kPromotedBytes,    metric::kDemotedBytes,
    metric::kTransferBytes,    metric::kTransferFailures,
    metric::kTransferSeconds,  metric::kInflightTransfers,
    metric::kHbmPromotions,    metric::kHbmPromotedBytes,
    metric::kHbmEvictedPages,  metric::kHbmLost,
    metric::kPeerLinks,        metric::kDeviceFallbacks,
    metric::kPrefetchAsked,    metric::kPrefetchLoaded,
    metric::kPrefetchUsed,     metric::kPrefetchLate,
    metric::kPrefetchUnused,   metric::kPrefetchVictims,
    metric::kPrefetchDropped,  metric::kPrefetchDemanded,
    metric::kPrefetchQueue,    metric::kEncodedPages,
    metric::kShedBytes,        metric::kEncodeSeconds,
    metric::kEncodeFailures,   metric::kEncodeQueue,
    metric::kEncodeRefusals,   metric::kRpcRequests,
    metric::kRpcSeconds,       metric::kRpcInflight,
    metric::kRpcRejected,      metric::kConnectionsRefused,
    metric::kSsdRead,          metric::kSsdWrite,
    metric::kSsdErrors,        metric::kSsdRefusals,
    metric::kSsdQueue,         metric::kSsdUnflushed,
    metric::kSsdFileBytes,     metric::kSsdBreaker,
    metric::kSsdBreakerTrips,  metric::kSsdLoadsLate,
    metric::kDirtyPages,       metric::kIntegrityFailures,
    metric::kSessions,         metric::kSessionsEnded,
    metric::kSequences,        metric::kLeases,
    metric::kLeasedPages,      metric::kLeasesExpired,
    metric::kStagedBytes,      metric::kTtft,
    metric::kDecodeTokens,     metric::kPrefillSaved,
    metric::kBuildInfo,        metric::kDraining,
    metric::kProcessCpu,       metric::kProcessResident,
    metric::kProcessVirtual,   metric::kProcessFds,
    metric::kProcessFdsMax,    metric::kProcessThreads,
    metric::kProcessStart};

}  // namespace pagoda
