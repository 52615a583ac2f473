// The Pagoda client: what an inference worker links. It keeps one session with a pagodad, finds
// prefixes, fetches pages into the worker's memory and pushes new ones. It runs no attention and
// knows no model: kernels/ and the engine do.
//
// A cache must never hurt: every call has a deadline, nothing here throws or retries for long, and
// every failure means a miss. While the daemon is away calls answer UNAVAILABLE at once; a
// background thread comes back to it by itself and opens the sequences again.
//
// Names are in pagoda::client; ids, keys and specs are those of storage/base.
//
//   auto client = Client::Create(options);                  // starts to connect, never blocks
//   auto scope = (*client)->FindScope({ScopeKind::kPrivate, ""});
//   auto keys = KeyChain(scope->root, prompt_ids, 64);
//   auto hit = (*client)->Lookup({.chains = {{scope->id, keys}}, .precision_min = Precision::kQ8});
//   if (hit.ok() && !hit->pages.empty()) auto pages = (*client)->Fetch(*hit, keys, {});
//
// Threads    every method from any thread.
// Ownership  results own their memory. Pushed memory is held by its `owner` until it is sent.
// Errors     UNAVAILABLE, DEADLINE_EXCEEDED   the daemon is away or slow: a miss
//            PERMISSION_DENIED, UNAUTHENTICATED   the token has no right to this
//            RESOURCE_EXHAUSTED   a limit of the daemon, or our push queue is full
//            DATA_LOSS            bytes arrived damaged (they are never returned)
//            INVALID_ARGUMENT     the caller's mistake, by name
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/path_stats.h"
#include "client/tls_options.h"
#include "kernels/aligned_buffer.h"
#include "storage/base/model_spec.h"
#include "storage/base/page_header.h"
#include "storage/base/page_key.h"
#include "storage/base/scope.h"

namespace pagoda {
class DeviceRuntime;  // storage/device/runtime.h
class DeviceStream;
class PeerTransport;  // storage/device/peer_transport.h
}  // namespace pagoda

namespace pagoda::client {

struct SequenceIdTag;
using SequenceId = DigestId<SequenceIdTag, 16>;
struct LeaseIdTag;
using LeaseId = DigestId<LeaseIdTag, 16>;
struct RequestIdTag;
using RequestId = DigestId<RequestIdTag, 16>;

enum class PageTier : uint8_t { kNone = 0, kHbm = 1, kHost = 2, kSsd = 3, kPeer = 4 };
absl::string_view PageTierName(PageTier tier);

// The way to the GPU of a daemon elsewhere, for FetchDevice().
struct PeerOptions {
  // NCCL's is OpenNccl (storage/device/nccl_transport.h). Null: none.
  std::function<absl::StatusOr<std::unique_ptr<PeerTransport>>(DeviceRuntime&)> open_transport;
  // Of device memory, and as much pinned host memory; what is moved at once. The largest page.
  int64_t staging_bytes = int64_t{32} << 20;
};

struct ClientOptions {
  // Behaviour.
  std::string target = "127.0.0.1:7070";  // host:port or unix:/path of the daemon
  std::string token;                      // sent as a bearer token; empty: none
  TlsOptions tls;                         // for a target of TCP; both channels use it
  // The daemon's socket for shared memory, as this process sees its path. Empty: where the daemon
  // says, or beside the target where that is a Unix socket; "none": everything goes over gRPC.
  std::string shm_socket;
  std::string client_name = "pagoda-client";
  std::optional<ModelSpec> model;  // needed for scopes, lookups and pushes
  uint32_t page_tokens = 64;
  uint64_t backend_tag = 0;  // BackendTagOf(what computes K and V); compared between pushers only
  // Performance. A miss must never cost more than it can save: keep these below a prefill.
  absl::Duration connect_timeout = absl::Seconds(2);
  absl::Duration control_timeout = absl::Seconds(1);
  absl::Duration transfer_timeout = absl::Seconds(10);
  absl::Duration reconnect_interval = absl::Milliseconds(500);
  int64_t push_queue_bytes_max = int64_t{256} << 20;  // per pusher; beyond it pages are not pushed
  // The GPU that this process reads pages on, for MapDevice() and FetchDevice(); outlives the
  // client. Null: none.
  DeviceRuntime* device = nullptr;
  PeerOptions peer;
  // Shared memory for pages on their way to a daemon of this machine; 0: they go over gRPC.
  int64_t push_staging_bytes = int64_t{64} << 20;

  absl::Status Validate() const;
};

struct ScopeInfo {
  Scope scope;
  ScopeId id;
  PageKey root;
  bool may_push = false;
};

// What the daemon said at Hello.
struct ServerInfo {
  std::string version;
  std::string instance_id;
  std::string tenant;
  Identity identity;
  std::vector<ScopeInfo> scopes;
  uint32_t page_tokens = 0;
  uint32_t batch_pages_max = 0;
  Precision ladder = Precision::kNone;
  std::string shm_socket;  // empty: none
};

// A layer group and a range of kv heads; the default is all heads of group 0.
struct PagePart {
  uint8_t group = 0;
  uint16_t head_begin = 0;
  uint16_t head_count = 0;  // 0: all
};

struct ScopeChain {
  ScopeId scope;
  std::vector<PageKey> keys;
};

struct LookupQuery {
  std::vector<ScopeChain> chains;  // the longest prefix wins, the earlier chain on a tie
  Precision precision_min = Precision::kRaw16;
  Precision fidelity_min = Precision::kRaw16;
  RequestId request_id;    // zero: a fresh one
  SequenceId sequence_id;  // zero: none; else the pages found become pages of this sequence
  PagePart part;
  // Instead of `part`: each key stands for its pages of these parts. They are found, and counted
  // everywhere, key by key: page k * parts.size() + p is key k's of part p. The last key may have
  // only some of its pages.
  std::vector<PagePart> parts;
  bool peek = false;  // no lease, no loading
};

struct FoundPage {
  bool loading = false;
  PageTier tier = PageTier::kNone;
  Precision precision = Precision::kNone;
  Precision fidelity = Precision::kNone;
  int64_t bytes = 0;
};

struct LookupResult {
  LeaseId lease;
  absl::Duration lease_until;  // SystemClock().Monotonic(), with a margin: stop using it here
  size_t chain_index = 0;
  std::vector<FoundPage> pages;  // a contiguous prefix; empty: a miss
  std::vector<PagePart> parts;   // those that were asked for, at least one
};

// Where the bytes of a page shall go: memory for each of its segments, stored_bytes() long, in
// their order. Called once a page and way (a page that shared memory could not give to its end is
// asked for over gRPC, too), before its bytes come, from any thread; nothing: the page is
// refused, and with it the fetch. `page_index` counts from page_begin.
using PageTarget =
    std::function<std::vector<MutableByteSpan>(uint32_t page_index, const PageHeader& header)>;

enum class PlaneOrder : uint8_t {
  kLayers,  // the first layers of all pages, then later ones
  // hi, which q4 is read from, of all pages first, then lo, each layer by layer: a reader may
  // attend on hi and refine. Who asks for this takes a page at the precision of hi where lo is
  // lost. Not for models with a layer profile: the q4 of those needs some of their lo planes.
  kHighFirst,
};

struct FetchOptions {
  uint32_t page_begin = 0;
  uint32_t page_count = 0;                     // 0: all pages of the lease
  Precision precision_max = Precision::kNone;  // most exact wanted; kNone: as stored
  PageTarget target = nullptr;                 // null: memory of the result's own
  PlaneOrder order = PlaneOrder::kLayers;
};

struct FetchedPage {
  PageHeader header;
  // stored_bytes() each, verified, padding zero; none where the bytes went to a PageTarget.
  std::vector<kernels::AlignedBuffer> segments;
  PageTier tier = PageTier::kNone;
};

struct FetchResult {
  std::vector<FetchedPage> pages;  // complete, verified, from page_begin without gaps
  absl::Status status;             // why it is shorter, or less exact, than asked; OK otherwise
  int64_t bytes = 0;
  // Of them, pages without their lo planes, which were on their way and lost: their headers list
  // what came, and PrecisionOf(header.planes) says so. With PlaneOrder::kHighFirst alone.
  int64_t reduced_pages = 0;
};

// A fetch under way, layer by layer: attention of layer 0 can begin while the others travel.
//
// Threads    one at a time, but for Cancel()
// Errors     of WaitHeaders() and WaitLayer(): the fetch cannot go on like this; Wait() may still
//            give its first pages
class PageFetch {
 public:
  virtual ~PageFetch() = default;  // Cancels; nobody writes to its memory any more
  // Headers of the pages that are coming, in order; fewer than asked: the others are missing.
  virtual absl::StatusOr<std::vector<PageHeader>> WaitHeaders(absl::Duration timeout) = 0;
  // Of those pages, every segment that holds this layer or one before it is there, verified.
  virtual absl::Status WaitLayer(uint32_t layer, absl::Duration timeout) = 0;
  // The same of the planes that q4 is read from (client/high_planes.h). With kHighFirst they come
  // before any other, else no sooner than the layer's others may; UINT32_MAX: all layers.
  virtual absl::Status WaitHighLayer(uint32_t layer, absl::Duration timeout) = 0;
  absl::Status WaitHighPlanes(absl::Duration timeout) { return WaitHighLayer(UINT32_MAX, timeout); }
  // The whole of it. Once, and the last call.
  virtual FetchResult Wait() = 0;
  virtual void Cancel() = 0;
};

using FetchCallback = std::function<void(absl::StatusOr<FetchResult>)>;

// A page where the daemon keeps it.
struct MappedPage {
  PageHeader header;
  std::vector<ByteSpan> segments;  // payloads, as in header.segments
  PageTier tier = PageTier::kNone;
};

// Pages of a lease in the daemon's own memory, mapped read-only: nothing is copied. The daemon
// verified the bytes when it took them. A reader that outlives its lease may see others: what it
// made of them counts only if StillValid() says so after its last read.
//
// Threads    const methods from any thread
// Ownership  keeps the maps; spans live as long as this
class MappedPages {
 public:
  virtual ~MappedPages() = default;
  virtual size_t size() const = 0;
  virtual const absl::Status& status() const = 0;  // why they are fewer than asked
  // ABORTED: given back meanwhile. DATA_LOSS: not a page of that key.
  virtual absl::StatusOr<MappedPage> Page(size_t index) const = 0;
  // The lease holds, and nothing was given back, all pages.
  virtual bool StillValid() const = 0;
};

// A page in device memory, mapped into this process: pointers for the device, not for the CPU.
struct PageOnDevice {
  PageHeader header;
  std::vector<const std::byte*> segments;  // stored_bytes() each, as in header.segments
};

// Pages of a lease in memory of the GPU that the daemon and this process share: nothing is copied
// on this side. Their bytes are there layer by layer, and stay until this is released, whatever
// becomes of the lease; what was made of them counts only if StillValid() says so after the last
// read. Release them soon: their room is nobody else's meanwhile.
//
// Threads    one at a time
// Ownership  goes before its client. Destroyed without ReleaseAfter(): nobody reads them any more
class DevicePages {
 public:
  virtual ~DevicePages() = default;
  virtual size_t size() const = 0;
  virtual size_t there_count() const = 0;
  // An error: this one is not in device memory, and why; Map() or Fetch() it.
  virtual const absl::StatusOr<PageOnDevice>& Page(size_t index) const = 0;
  // What follows in `stream` waits until all these pages have this layer; or the CPU does. It waits
  // for no daemon that is gone: then StillValid() says no.
  virtual absl::Status WaitLayer(DeviceStream& stream, uint32_t layer) = 0;
  virtual absl::Status AwaitLayer(uint32_t layer, absl::Duration timeout) = 0;
  // All layers came, the device is well, and the daemon keeps what it granted.
  virtual bool StillValid() const = 0;
  // They are read when `stream` has come to here. Once. An error: the daemon is not told, and keeps
  // their room until this process ends.
  virtual absl::Status ReleaseAfter(DeviceStream& stream) = 0;
};

// Memory of ClientOptions.device for the segments of one page, stored_bytes() each, in their order.
// `owner` is held until the device is done with it, which may be after a call that failed. Nothing:
// the page is not wanted.
struct DeviceTarget {
  std::vector<std::byte*> segments;
  std::shared_ptr<const void> owner;
};
// `page_index` counts from page_begin.
using DeviceTargets = std::function<DeviceTarget(uint32_t page_index, const PageHeader& header)>;

// A full page of raw16 on its way to the daemon, or of opaque bytes where the model's kv_dtype is
// that. Segments follow the layout in kernels/page_layout.h; crc32c has one checksum each.
struct PushItem {
  ScopeId scope;
  PageKey key;
  PageKey parent;
  bool parent_is_root = false;
  std::vector<uint32_t> token_ids;
  uint64_t base_position = 0;
  Precision fidelity = Precision::kRaw16;
  Precision precision = Precision::kRaw16;  // or kOpaque
  uint32_t opaque_layer_bytes = 0;          // kOpaque: of one layer of this part
  PagePart part;
  std::vector<ByteSpan> segments;
  std::vector<uint32_t> segment_crc32c;
  std::shared_ptr<const void> owner;  // keeps the segments' memory alive
};

// Memory to put a page together in, of the size that was asked for.
struct PushMemory {
  MutableByteSpan bytes;
  std::shared_ptr<const void> owner;  // for PushItem.owner
};

enum class PushOutcome { kStored, kAlreadyStored, kReplaced };
using PushCallback = std::function<void(const PageKey&, const absl::StatusOr<PushOutcome>&)>;

// One stream of pages, usually one per sequence. Not usable after the first failure of gRPC: what
// is pushed then is refused (recompute costs nothing, the page stays with the worker).
class Pusher {
 public:
  virtual ~Pusher() = default;  // Cancels what is not answered.
  // Queues a page; never waits. Errors: RESOURCE_EXHAUSTED, UNAVAILABLE.
  virtual absl::Status Push(PushItem item) = 0;
  // Waits until every queued page is answered. DEADLINE_EXCEEDED if not in time.
  virtual absl::Status Flush(absl::Duration timeout) = 0;
  // Memory that the daemon can read, where it is on this machine: a page whose segments lie there
  // is pushed without a copy on this side. Give it back before long: it is bounded, and plain
  // memory when that is taken.
  virtual PushMemory Reserve(int64_t bytes) = 0;
};

struct ClientStats {
  int64_t lookups = 0;
  int64_t lookup_failures = 0;
  int64_t fetched_pages = 0;
  int64_t fetched_bytes = 0;
  int64_t fetch_failures = 0;
  int64_t shm_pages = 0;           // of fetched_pages, out of shared memory
  int64_t shm_fallbacks = 0;       // fetches that began there and went on over gRPC
  int64_t mapped_pages = 0;        // by Map(); not among fetched_pages
  int64_t device_pages = 0;        // by MapDevice(); not among fetched_pages
  int64_t device_fallbacks = 0;    // pages that it was asked for and did not have
  int64_t peer_pages = 0;          // by FetchDevice(); not among fetched_pages
  int64_t peer_fallbacks = 0;      // pages that it was asked for and did not have
  int64_t pushed_pages = 0;        // answered stored, already stored or replaced
  int64_t shm_pushed_pages = 0;    // of them, through shared memory
  int64_t shm_push_fallbacks = 0;  // pages that began there and went over gRPC
  int64_t push_failures = 0;
  int64_t reconnects = 0;
  PathStats shm;
  PathStats nccl;
  PathStats grpc;

  // A line for each path that was used, with \n.
  std::string PathLines() const;
};

class Client {
 public:
  // Checks the options and starts to connect in the background.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);
  virtual ~Client() = default;

  // Waits until the session is open, at most `timeout`. Otherwise says why not.
  virtual absl::Status WaitConnected(absl::Duration timeout) = 0;
  virtual bool connected() const = 0;
  // Of the current or last session; nothing before the first.
  virtual std::optional<ServerInfo> server_info() const = 0;
  // A private scope is found by its kind alone.
  virtual std::optional<ScopeInfo> FindScope(const Scope& scope) const = 0;

  // A running request, announced until closed; see OpenSequence in cache.proto.
  virtual SequenceId OpenSequence(uint64_t length_tokens, uint32_t window_tokens,
                                  Precision precision) = 0;
  virtual void AdvanceSequence(const SequenceId& id, uint64_t length_tokens) = 0;
  virtual void CloseSequence(const SequenceId& id) = 0;

  virtual absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) = 0;
  // `keys` are those of the chosen chain, as many as it was asked with: what arrives under another
  // key or part is refused.
  virtual absl::StatusOr<FetchResult> Fetch(const LookupResult& hit, absl::Span<const PageKey> keys,
                                            const FetchOptions& options) = 0;
  // The same, without waiting: layer by layer, or with a callback on a thread of the library.
  virtual absl::StatusOr<std::unique_ptr<PageFetch>> StartFetch(const LookupResult& hit,
                                                                absl::Span<const PageKey> keys,
                                                                const FetchOptions& options) = 0;
  virtual void FetchThen(const LookupResult& hit, absl::Span<const PageKey> keys,
                         const FetchOptions& options, FetchCallback callback) = 0;
  std::future<absl::StatusOr<FetchResult>> FetchAsync(const LookupResult& hit,
                                                      absl::Span<const PageKey> keys,
                                                      const FetchOptions& options);
  // Pages where the daemon of this machine keeps them. UNAVAILABLE: there is no shared memory with
  // it, or a page is still on its way there; fetch instead. precision_max must be kNone.
  virtual absl::StatusOr<std::unique_ptr<MappedPages>> Map(const LookupResult& hit,
                                                           absl::Span<const PageKey> keys,
                                                           const FetchOptions& options) = 0;
  // Pages in memory of ClientOptions.device, copied there by the daemon if they are not there yet.
  // Each may be missing with a status of its own. UNAVAILABLE, FAILED_PRECONDITION, UNIMPLEMENTED:
  // none can be had there; Map() or Fetch(). They come as they are stored: precision_max and target
  // are of no effect.
  virtual absl::StatusOr<std::unique_ptr<DevicePages>> MapDevice(const LookupResult& hit,
                                                                 absl::Span<const PageKey> keys,
                                                                 const FetchOptions& options) = 0;
  // The same pages, copied into memory of the caller's own on ClientOptions.device from that of a
  // daemon with another GPU, over a link that is made when it is first wanted. They are all there
  // and verified when this returns; each may be missing with a status of its own. UNAVAILABLE: the
  // link is being made, or broke and pauses; UNIMPLEMENTED, FAILED_PRECONDITION: there is none to
  // be had. Fetch() then.
  virtual absl::StatusOr<std::vector<absl::StatusOr<PageOnDevice>>> FetchDevice(
      const LookupResult& hit, absl::Span<const PageKey> keys, const FetchOptions& options,
      const DeviceTargets& targets) = 0;
  virtual void Release(const LeaseId& lease) = 0;
  virtual absl::Status Renew(const LeaseId& lease) = 0;
  // `parts` as in LookupQuery; none: all heads of group 0.
  virtual absl::Status Prefetch(absl::Span<const ScopeChain> chains, absl::Duration deadline,
                                absl::Span<const PagePart> parts) = 0;
  absl::Status Prefetch(absl::Span<const ScopeChain> chains, absl::Duration deadline) {
    return Prefetch(chains, deadline, {});
  }
  // Time to first token, for the daemon's metrics; best effort. A zero id names no sequence.
  virtual void ReportTtft(const SequenceId& id, double seconds, uint32_t prompt_tokens,
                          uint32_t hit_tokens) = 0;

  // `callback` runs on a thread of the library, once per page; may be null.
  virtual absl::StatusOr<std::unique_ptr<Pusher>> OpenPusher(const SequenceId& sequence,
                                                             PushCallback callback) = 0;

  virtual ClientStats stats() const = 0;
};

}  // namespace pagoda::client
