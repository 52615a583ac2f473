// Everything that can be set on a daemon, with defaults and the reason to change them. Read from a
// file by config_file.h, overridden by flags in main.cc, checked once by Validate().
//
// Errors  INVALID_ARGUMENT names the field, its value, what is accepted and the remedy
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache-server/ladder.h"
#include "kernels/layer_profile.h"
#include "storage/base/precision.h"
#include "storage/device/peer_transport.h"
#include "storage/device/runtime.h"
#include "storage/host_tier.h"
#include "storage/prefetch/prefetch_options.h"
#include "storage/store_policies.h"

namespace pagoda {

// Bounds that clients are told at Hello. Each is an error when exceeded, never a wait.
struct LimitOptions {
  uint32_t batch_pages_max = 4096;  // keys of one Lookup: 262144 tokens in pages of 64
  int64_t control_message_bytes_max = int64_t{1} << 20;  // any message but Push and Fetch pieces
  int64_t piece_message_bytes_max = int64_t{8} << 20;    // one PushRequest or FetchResponse
  uint32_t sessions_max = 256;
  uint32_t leases_per_session_max = 1024;
  uint32_t sequences_per_session_max = 256;
  uint32_t staged_pages_per_session_max = 16;  // push streams of one session at a time
  uint32_t models_max = 64;                    // distinct models announced
  uint32_t encode_queue_pages_max = 65536;     // beyond it pages wait for the next scan
};

// To which precisions pages come down once no window needs them exact. Lower: more pages in the
// same memory; raw16: never encoded.
struct LadderOptions {
  Ladder standard;
  std::map<std::string, Ladder> models;  // by ModelSpec.model; others use `standard`
  // In which layers K keeps its lo plane at q4, by ModelSpec.model; used where identity and layers
  // are those of the model that announces itself.
  std::map<std::string, LayerProfile> profiles;

  // The shortest time after which a page is idle; infinite: no ladder has that step.
  absl::Duration ShortestIdle() const;
  // The lowest precision of a pressure step; nothing: no ladder has that step.
  std::optional<Precision> LowestPressure() const;
};

struct SsdSettings {
  bool enabled = true;  // false: everything is in host memory only and gone after a restart
  std::string path;     // empty: DATA_DIR/ssd
  int64_t capacity_bytes = int64_t{20} << 30;
};

// Shared memory for clients of this machine.
struct ShmSettings {
  bool enabled = true;
  std::string socket;  // a path; empty: beside `listen` where that is unix:PATH, else in data_dir
  int64_t staging_bytes = int64_t{1} << 30;  // of all clients; pages on their way in
};

// TLS on a TCP address; Unix sockets stay as they are. All paths are PEM files, read again when
// they change.
struct TlsSettings {
  std::string certificate;  // of this daemon, those up to its authority behind it; empty: no TLS
  std::string key;          // its key, mode 0600, or 0640 where a group hands out secrets
  std::string client_ca;    // authorities whose clients are let in
  // False: callers without a certificate are known by their token alone.
  bool require_client_certificate = true;
  bool enabled() const { return !certificate.empty() || !key.empty() || !client_ca.empty(); }
};

// Memory of one GPU for pages that workers of this machine read there.
struct HbmSettings {
  // none: engines claim most of a GPU's memory, so that this is for who decides it; auto: the first
  // GPU, and none where there is none; an index; or a UUID, as nvidia-smi -L prints it. One that is
  // named and cannot be opened ends the start.
  std::string device = "none";
  int64_t capacity_bytes = int64_t{1} << 30;  // taken at the start, beside up to 0.6 GB of context
  int64_t chunk_bytes = int64_t{64} << 20;    // of one scope at a time; also the largest segment
  // Whether pages of groups and of the public scope are lent, too. Who may push there could then
  // alter what others read, beside what was pushed and checked.
  bool shared_scopes = false;
  // Workers on other GPUs that pages are sent to by NCCL, at a time. Each link takes up to 32 MiB
  // of device memory beside `capacity_bytes`, and NCCL some 25 MB for it. 0: none, and no NCCL
  // needed.
  int32_t peer_links_max = 0;
  // In place of CUDA and of NCCL, for tests.
  std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>()> open_device;
  std::function<absl::StatusOr<std::unique_ptr<PeerTransport>>(DeviceRuntime&)> open_transport;

  absl::Status Validate() const;
};

struct ServerOptions {
  // Behaviour.
  std::string listen = "127.0.0.1:7070";          // HOST:PORT or unix:PATH; port 0 takes a free one
  std::string metrics_listen = "127.0.0.1:7072";  // HOST:PORT, or "none"
  std::string data_dir;                           // required; created if absent
  std::string token_file;          // empty: everybody is tenant `local`; see Validate()
  std::string master_secret_file;  // empty: DATA_DIR/master.secret; shared by a fleet
  std::string log_level = "info";
  TlsSettings tls;
  // Whether other machines may connect without TLS: tokens and pages can then be read on their way.
  bool insecure = false;
  HostTierOptions host;
  SsdSettings ssd;
  ShmSettings shm;
  HbmSettings hbm;
  StorePolicies policies;  // which pages go, when, and whose
  LadderOptions ladder;
  prefetch::Options prefetch;
  LimitOptions limits;

  // Performance.
  uint32_t page_tokens = 64;                    // told to clients that do not choose
  int32_t encode_threads = 1;                   // quantizing takes about 1.3 ns an element
  absl::Duration lease = absl::Seconds(30);     // longer than the slowest fetch of one request
  absl::Duration heartbeat = absl::Seconds(2);  // how often a client speaks at least
  absl::Duration session_timeout = absl::Seconds(10);  // silence after which a client is dead

  // An address that other machines reach wants TLS (or `insecure`), and something that tells
  // callers apart: a token file, or certificates that clients must have.
  absl::Status Validate() const;

  std::string shm_socket() const;
  std::string ssd_path() const { return ssd.path.empty() ? data_dir + "/ssd" : ssd.path; }
  std::string master_secret_path() const {
    return master_secret_file.empty() ? data_dir + "/master.secret" : master_secret_file;
  }
};

}  // namespace pagoda
