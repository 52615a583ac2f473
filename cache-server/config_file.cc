#include "cache-server/config_file.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/layer_profile.h"
#include "storage/base/status_macros.h"
#include "storage/base/yaml_section.h"

namespace pagoda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kTiB = int64_t{1} << 40;

void ReadWatermarks(YamlSection section, policy::Watermarks& marks) {
  section.Fraction("start", marks.start);
  section.Fraction("stop", marks.stop);
  section.Fraction("hard", marks.hard);
  section.Finish();
}

void ReadPrefetch(YamlSection section, prefetch::Options& prefetch) {
  section.Bool("hint", prefetch.hint);
  section.Bool("sequence", prefetch.sequence);
  section.Bool("next_page", prefetch.next_page);
  section.Bool("hotness", prefetch.hotness);
  section.Bool("return", prefetch.predicted_return);
  section.Size("bytes_per_second", prefetch.bytes_per_second, kMiB, kTiB);
  section.Finish();
}

void ReadTierPolicies(YamlSection& section, TierPolicies& tier) {
  section.String("eviction", tier.eviction);
  ReadWatermarks(section.Section("watermarks"), tier.marks);
}

void ReadHotPin(YamlSection section, policy::HotPinOptions& hot) {
  section.Integer("uses", hot.uses_min, 0, 255);
  section.Fraction("share", hot.share);
  section.Finish();
}

void ReadFloors(YamlSection section, StorePolicies& policies) {
  for (const std::string& name : section.Names()) {
    const absl::StatusOr<Scope> scope = ParseNamedScope(name);
    if (!scope.ok()) section.Refuse(name, "private:TENANT, group:NAME or public as its name");
    YamlSection floor = section.Section(name);
    int64_t host_bytes = 0;
    int64_t ssd_bytes = 0;
    floor.Size("host", host_bytes, 0, 64 * kTiB);
    floor.Size("ssd", ssd_bytes, 0, 1024 * kTiB);
    floor.Finish();
    if (scope.ok()) policies.SetFloors(ScopeIdOf(*scope), host_bytes, ssd_bytes);
  }
}

void ReadHost(YamlSection section, HostTierOptions& host, TierPolicies& policies) {
  section.Size("capacity", host.capacity_bytes, kMiB, 64 * kTiB);
  std::string chunk = "auto";
  section.String("chunk", chunk);
  if (chunk != "auto") section.Size("chunk", host.chunk_bytes_max, kMiB, 64 * kMiB);
  section.Integer("touch_threads", host.touch_threads, 0, 256);
  section.Bool("huge_pages", host.huge_pages);
  ReadTierPolicies(section, policies);
  section.Finish();
}

void ReadTls(YamlSection section, TlsSettings& tls) {
  section.String("certificate", tls.certificate);
  section.String("key", tls.key);
  section.String("client_ca", tls.client_ca);
  section.Bool("require_client_certificate", tls.require_client_certificate);
  section.Finish();
}

void ReadShm(YamlSection section, ShmSettings& shm) {
  section.Bool("enabled", shm.enabled);
  section.String("socket", shm.socket);
  section.Size("staging", shm.staging_bytes, kMiB, 1024 * 1024 * kMiB);
  section.Finish();
}

void ReadHbm(YamlSection section, HbmSettings& hbm) {
  section.String("device", hbm.device);
  section.Size("capacity", hbm.capacity_bytes, 2 * kMiB, 64 * kTiB);
  section.Size("chunk", hbm.chunk_bytes, 2 * kMiB, 1024 * kMiB);
  section.Bool("shared_scopes", hbm.shared_scopes);
  section.Integer("peer_links_max", hbm.peer_links_max, 0, 64);
  section.Finish();
}

void ReadSsd(YamlSection section, SsdSettings& ssd, StorePolicies& policies) {
  section.Bool("enabled", ssd.enabled);
  section.String("path", ssd.path);
  section.Size("capacity", ssd.capacity_bytes, 64 * kMiB, 1024 * kTiB);
  ReadTierPolicies(section, policies.ssd);
  std::string admission(policy::SsdAdmissionName(policies.ssd_admission));
  section.String("admission", admission);
  const auto parsed = policy::ParseSsdAdmission(admission);
  if (parsed.ok()) {
    policies.ssd_admission = *parsed;
  } else {
    section.Refuse("admission", "always, second_touch or s3fifo_ghost");
  }
  section.Finish();
}

// A step that is not lower than the one before it would never be taken.
void ReadStep(YamlSection& section, absl::string_view key, Precision above,
              std::optional<Precision>& step) {
  Precision precision = Precision::kNone;
  section.Ladder(key, precision);
  if (!section.Has(key)) return;
  step = precision;
  if (precision >= above) {
    section.Refuse(key, absl::StrCat("a precision below fresh, which is ", PrecisionName(above)));
  }
}

// `ladder: q8`, or its steps in a map.
void ReadLadder(YamlSection& parent, Ladder& ladder) {
  if (!parent.HasMap("ladder")) {
    Precision precision = ladder.fresh;
    parent.Ladder("ladder", precision);
    if (parent.Has("ladder")) ladder = precision;
    return;
  }
  ladder = Ladder();
  YamlSection section = parent.Section("ladder");
  section.Ladder("fresh", ladder.fresh);
  ReadStep(section, "pressure", ladder.fresh, ladder.pressure);
  ReadStep(section, "ssd", ladder.fresh, ladder.ssd);
  YamlSection idle = section.Section("idle");
  if (section.Has("idle")) {
    ladder.idle_after = absl::ZeroDuration();
    idle.Time("after", ladder.idle_after, absl::Seconds(1), absl::Hours(24 * 365));
    ReadStep(idle, "precision", ladder.fresh, ladder.idle);
    if (!idle.Has("after")) idle.Refuse("after", "a time, as in 10m");
    if (!idle.Has("precision")) idle.Refuse("precision", "q8, q4, q3 or q2");
  }
  idle.Finish();
  section.Finish();
}

void ReadModels(YamlSection section, LadderOptions& ladder) {
  for (const std::string& name : section.Names()) {
    YamlSection model = section.Section(name);
    Ladder own = ladder.standard;
    ReadLadder(model, own);
    if (model.Has("ladder")) ladder.models[name] = own;
    std::string profile;
    model.String("profile", profile);
    if (!profile.empty()) {
      const absl::StatusOr<LayerProfile> read = ReadLayerProfile(profile);
      if (!read.ok()) model.Report("profile", read.status().message());
      if (read.ok()) ladder.profiles[name] = *read;
    }
    model.Finish();
  }
}

void ReadLimits(YamlSection section, LimitOptions& limits) {
  section.Integer("batch_pages_max", limits.batch_pages_max, 1, 16384);
  section.Size("control_message_bytes_max", limits.control_message_bytes_max, 64 << 10, 4 * kMiB);
  section.Size("piece_message_bytes_max", limits.piece_message_bytes_max, 2 * kMiB, 64 * kMiB);
  section.Integer("sessions_max", limits.sessions_max, 1, 65536);
  section.Integer("leases_per_session_max", limits.leases_per_session_max, 1, 65536);
  section.Integer("sequences_per_session_max", limits.sequences_per_session_max, 1, 65536);
  section.Integer("staged_pages_per_session_max", limits.staged_pages_per_session_max, 1, 1024);
  section.Integer("models_max", limits.models_max, 1, 4096);
  section.Integer("encode_queue_pages_max", limits.encode_queue_pages_max, 1, 1 << 24);
  section.Finish();
}

}  // namespace

absl::Status ReadConfigFile(const std::string& path, ServerOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const YAML::Node node, LoadYamlFile(path));
  absl::Status error;
  YamlSection root(path, node, "", error);
  root.String("listen", options.listen);
  root.String("metrics_listen", options.metrics_listen);
  root.String("data_dir", options.data_dir);
  root.String("token_file", options.token_file);
  root.String("master_secret_file", options.master_secret_file);
  root.String("log_level", options.log_level);
  ReadTls(root.Section("tls"), options.tls);
  root.Bool("insecure", options.insecure);
  StorePolicies& policies = options.policies;
  ReadWatermarks(root.Section("watermarks"), policies.host.marks);
  policies.ssd.marks = policies.host.marks;  // unless a tier has its own
  ReadHost(root.Section("host"), options.host, policies.host);
  ReadSsd(root.Section("ssd"), options.ssd, policies);
  ReadShm(root.Section("shm"), options.shm);
  ReadHbm(root.Section("hbm"), options.hbm);
  ReadHotPin(root.Section("hot_pin"), policies.hot_pin);
  ReadFloors(root.Section("floors"), policies);
  ReadLadder(root, options.ladder.standard);
  ReadModels(root.Section("models"), options.ladder);
  ReadPrefetch(root.Section("prefetch"), options.prefetch);
  ReadLimits(root.Section("limits"), options.limits);
  root.Integer("page_tokens", options.page_tokens, 32, 256);
  root.Integer("encode_threads", options.encode_threads, 1, 256);
  root.Seconds("lease_seconds", options.lease, 1, 600);
  root.Seconds("heartbeat_seconds", options.heartbeat, 0.05, 60);
  root.Seconds("session_timeout_seconds", options.session_timeout, 0.1, 600);
  root.Finish();
  return error;
}

}  // namespace pagoda
