// Goal: every mistake in a configuration is one line that says where, what, what is accepted and
// what to do. Method: a table of files and the words their error must hold; the example file loads.
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cache-server/caller.h"
#include "cache-server/config_file.h"
#include "cache-server/listen_address.h"
#include "cache-server/token_file.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {
namespace {

std::string WriteFile(const TempDir& dir, const std::string& text, mode_t mode = 0600) {
  const std::string path = dir.path() + "/file.yaml";
  std::ofstream(path, std::ios::trunc) << text;
  EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  return path;
}

TEST(ConfigFileTest, TheExampleFileIsValidAndHoldsTheDefaults) {
  ServerOptions options;
  PAGODA_ASSERT_OK(ReadConfigFile("deploy/pagodad.example.yaml", options));
  PAGODA_EXPECT_OK(options.Validate());
  const ServerOptions standard;
  EXPECT_EQ(options.listen, standard.listen);
  EXPECT_EQ(options.host.capacity_bytes, standard.host.capacity_bytes);
  EXPECT_EQ(options.host.chunk_bytes_max, standard.host.chunk_bytes_max);
  EXPECT_EQ(options.ssd.capacity_bytes, standard.ssd.capacity_bytes);
  EXPECT_EQ(options.policies.host.marks.start, standard.policies.host.marks.start);
  EXPECT_EQ(options.limits.batch_pages_max, standard.limits.batch_pages_max);
  EXPECT_EQ(options.limits.encode_queue_pages_max, standard.limits.encode_queue_pages_max);
  EXPECT_EQ(options.prefetch.bytes_per_second, standard.prefetch.bytes_per_second);
  EXPECT_EQ(options.prefetch.predicted_return, standard.prefetch.predicted_return);
  EXPECT_EQ(options.hbm.device, standard.hbm.device);
  EXPECT_EQ(options.hbm.capacity_bytes, standard.hbm.capacity_bytes);
  EXPECT_EQ(options.hbm.chunk_bytes, standard.hbm.chunk_bytes);
  EXPECT_EQ(options.hbm.shared_scopes, standard.hbm.shared_scopes);
  EXPECT_EQ(options.hbm.peer_links_max, standard.hbm.peer_links_max);
  EXPECT_EQ(options.lease, standard.lease);
  EXPECT_EQ(options.ladder.standard, standard.ladder.standard);
}

TEST(ConfigFileTest, ModelsHaveLayerProfiles) {
  TempDir dir;
  LayerProfile profile;
  profile.identity.bytes.fill(0xab);
  profile.layer_count = 30;
  profile.k_lo_layers = {3, 8};
  profile.bits = 4.5;
  const std::string path = dir.path() + "/profile.yaml";
  std::ofstream(path) << LayerProfileYaml(profile);
  ServerOptions options;
  PAGODA_ASSERT_OK(ReadConfigFile(
      WriteFile(dir, absl::StrCat("models: {a: {profile: ", path, "}}\n")), options));
  EXPECT_EQ(options.ladder.profiles.at("a").k_lo_layers, profile.k_lo_layers);
  EXPECT_TRUE(options.ladder.models.empty());  // its ladder is the standard one
  // Of a mistake in the profile the line names both files.
  std::ofstream(path) << "layers: 30\n";
  const std::string config = WriteFile(dir, absl::StrCat("models: {a: {profile: ", path, "}}\n"));
  EXPECT_THAT(
      ReadConfigFile(config, options),
      StatusIs(absl::StatusCode::kInvalidArgument,
               absl::StrCat(config, ": models.a.profile: ", path, ": k_lo_layers: is absent")));
  EXPECT_THAT(
      ReadConfigFile(WriteFile(dir, "models: {a: {profile: /none.yaml}}\n"), options),
      StatusIs(absl::StatusCode::kInvalidArgument, "models.a.profile: /none.yaml: no such"));
}

TEST(ConfigFileTest, LaddersHaveSteps) {
  TempDir dir;
  ServerOptions options;
  PAGODA_ASSERT_OK(ReadConfigFile(
      WriteFile(dir,
                "ladder:\n  fresh: q8\n  idle: {after: 10m, precision: q4}\n  pressure: q4\n"
                "  ssd: q2\nmodels:\n  a: {ladder: {fresh: raw16, ssd: q8}}\n  b: {ladder: q4}\n"
                "  c: {ladder: {idle: {after: 90s, precision: q4}}}\n"
                "  d: {ladder: {pressure: q3}}\n"),
      options));
  EXPECT_EQ(LadderText(options.ladder.standard), "q8, idle 10m q4, pressure q4, ssd q2");
  // A model's ladder stands for itself.
  EXPECT_EQ(LadderText(options.ladder.models.at("a")), "raw16, ssd q8");
  EXPECT_EQ(LadderText(options.ladder.models.at("b")), "q4");
  EXPECT_EQ(LadderText(options.ladder.models.at("c")), "q8, idle 1m30s q4");
  EXPECT_EQ(options.ladder.ShortestIdle(), absl::Seconds(90));
  EXPECT_EQ(options.ladder.LowestPressure(), Precision::kQ3);
  ServerOptions plain;
  EXPECT_EQ(plain.ladder.ShortestIdle(), absl::InfiniteDuration());
  EXPECT_EQ(plain.ladder.LowestPressure(),
            std::nullopt);  // a step that nobody asked for is not taken
}

TEST(ConfigFileTest, ModelsHaveLaddersOfTheirOwn) {
  TempDir dir;
  ServerOptions options;
  PAGODA_ASSERT_OK(ReadConfigFile(
      WriteFile(dir, "ladder: raw16\nmodels: {a/b-1.5: {ladder: q4}, other: {}}\n"), options));
  const std::map<std::string, Ladder> expected = {{"a/b-1.5", Precision::kQ4}};
  EXPECT_EQ(options.ladder.models, expected);
  EXPECT_EQ(options.ladder.standard, Precision::kRaw16);
}

TEST(ConfigFileTest, EachPrefetchSourceHasItsSwitch) {
  TempDir dir;
  for (const auto& [name, source] : {std::pair{"hint", prefetch::Source::kHint},
                                     {"sequence", prefetch::Source::kSequence},
                                     {"next_page", prefetch::Source::kNextPage},
                                     {"hotness", prefetch::Source::kHotness},
                                     {"return", prefetch::Source::kReturn}}) {
    ServerOptions options;
    PAGODA_ASSERT_OK(ReadConfigFile(
        WriteFile(dir, absl::StrCat("prefetch: {", name, ": false, bytes_per_second: 2MiB}")),
        options));
    EXPECT_EQ(options.prefetch.bytes_per_second, 2 << 20);
    for (int i = 0; i < prefetch::kSourceCount; ++i) {
      const auto other = static_cast<prefetch::Source>(i);
      EXPECT_EQ(options.prefetch.Enabled(other), other != source) << name;
    }
  }
}

// Whoever adds a section and forgets to ask for its unknown keys learns it here.
TEST(ConfigFileTest, EverySectionRefusesUnknownKeys) {
  TempDir dir;
  std::ifstream example("deploy/pagodad.example.yaml");
  int sections = 0;
  for (std::string line; std::getline(example, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line[0] < 'a' || line[0] > 'z') continue;
    const std::string rest = line.substr(colon + 1, line.find('#', colon) - colon - 1);
    if (!absl::StripAsciiWhitespace(rest).empty()) continue;
    ++sections;
    const std::string name = line.substr(0, colon);
    ServerOptions options;
    EXPECT_THAT(ReadConfigFile(WriteFile(dir, absl::StrCat(name, ": {zzzzzzzzz: 1}\n")), options),
                StatusIs(absl::StatusCode::kInvalidArgument, absl::StrCat(name, ".zzzzzzzzz")));
  }
  EXPECT_GE(sections, 7);
}

TEST(ConfigFileTest, EveryMistakeNamesItsPlaceAndTheRemedy) {
  const struct {
    const char* text;
    std::vector<const char*> words;
  } table[] = {
      {"listne: 1", {"file.yaml", "listne", "unknown key", "did you mean listen?"}},
      {"host: {capasity: 1GiB}", {"host.capasity", "did you mean capacity?"}},
      {"host: {zzzzzzzzz: 1}", {"host.zzzzzzzzz", "unknown key"}},
      {"host: {capacity: many}", {"host.capacity", "'many'", "512MiB"}},
      {"host: {capacity: 1KiB}", {"host.capacity", "'1KiB'", "from 1MiB"}},
      {"host: {chunk: 1KiB}", {"host.chunk", "'1KiB'", "64MiB"}},
      {"host: [1, 2]", {"host", "a list", "a map"}},
      {"hbm: {chunk: 1MiB}", {"hbm.chunk", "'1MiB'", "from 2MiB"}},
      {"hbm: {devise: auto}", {"hbm.devise", "did you mean device?"}},
      {"ssd: {enabled: yes}", {"ssd.enabled", "'yes'", "true or false"}},
      {"ssd: {admission: never}", {"ssd.admission", "'never'", "second_touch"}},
      {"hot_pin: {uses: 256}", {"hot_pin.uses", "'256'", "0 to 255"}},
      {"floors: {acme: {host: 1MiB}}", {"floors.acme", "private:TENANT"}},
      {"floors: {public: {hots: 1MiB}}", {"floors.public.hots", "did you mean host?"}},
      {"watermarks: {start: 85}", {"watermarks.start", "'85'", "fraction"}},
      {"watermarks: {start: nan}", {"watermarks.start", "fraction"}},
      {"ladder: q5", {"ladder", "'q5'", "raw16, q8, q4, q3 or q2"}},
      {"ladder: q1", {"ladder", "'q1'", "raw16, q8, q4, q3 or q2"}},
      {"models: {a: {ladder: x}}", {"models.a.ladder", "'x'", "raw16, q8, q4, q3 or q2"}},
      {"models: {a: {laddr: q8}}", {"models.a.laddr", "did you mean ladder?"}},
      {"ladder: [q8]", {"ladder", "a list", "raw16, q8, q4, q3 or q2"}},
      {"ladder: {fresh: q9}", {"ladder.fresh", "'q9'", "raw16, q8, q4, q3 or q2"}},
      {"ladder: {presure: q4}", {"ladder.presure", "did you mean pressure?"}},
      {"ladder: {pressure: q8}", {"ladder.pressure", "'q8'", "below fresh, which is q8"}},
      {"ladder: {fresh: q4, ssd: q4}", {"ladder.ssd", "'q4'", "below fresh, which is q4"}},
      {"ladder: {idle: q4}", {"ladder.idle", "'q4'", "a map"}},
      {"ladder: {idle: {after: 10m}}", {"ladder.idle.precision", "absent", "q8, q4, q3 or q2"}},
      {"ladder: {idle: {precision: q4}}", {"ladder.idle.after", "absent", "as in 10m"}},
      {"ladder: {idle: {after: 600, precision: q4}}", {"ladder.idle.after", "'600'", "as in 90s"}},
      {"models: {a: q8}", {"models.a", "'q8'", "a map"}},
      {"page_tokens: 8", {"page_tokens", "'8'", "32 to 256"}},
      {"page_tokens: [1]", {"page_tokens", "a list"}},
      {"encode_threads: 1.5", {"encode_threads", "'1.5'", "whole number"}},
      {"lease_seconds: -1", {"lease_seconds", "'-1'", "seconds from"}},
      {"limits: {batch_pages_max: 0}", {"limits.batch_pages_max", "'0'", "1 to 16384"}},
      {"limits: {sesions_max: 1}", {"limits.sesions_max", "did you mean sessions_max?"}},
      {"prefetch: {hints: true}", {"prefetch.hints", "did you mean hint?"}},
      {"prefetch: {hotness: 1}", {"prefetch.hotness", "'1'", "true or false"}},
      {"prefetch: {bytes_per_second: 10}", {"prefetch.bytes_per_second", "'10'", "from 1MiB"}},
      {"listen: {a: b}", {"listen", "a map", "a text"}},
      {"- listen", {"file.yaml", "a list", "a map of settings"}},
      {"listen: [", {"file.yaml:", "not YAML"}},
      // Whatever the file holds, the error is one line.
      {"page_tokens: \"1\\n2\"", {"page_tokens", "'1\\n2'"}},
      {"\"a\\nb\": 1", {"a\\nb", "unknown key"}},
      {"listen: \"\\\n\\\001\"", {"not YAML"}},
  };
  for (const auto& row : table) {
    TempDir dir;
    ServerOptions options;
    const absl::Status status = ReadConfigFile(WriteFile(dir, row.text), options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.text;
    for (const char* word : row.words) {
      EXPECT_NE(std::string(status.message()).find(word), std::string::npos)
          << row.text << " -> " << status.message() << " lacks " << word;
    }
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos) << status.message();
  }
}

TEST(ConfigFileTest, PoliciesOfEachTier) {
  TempDir dir;
  ServerOptions options;
  PAGODA_ASSERT_OK(ReadConfigFile(
      WriteFile(dir,
                "watermarks: {start: 0.8}\n"
                "host: {eviction: lru, watermarks: {hard: 0.9}}\n"
                "ssd: {admission: s3fifo_ghost, watermarks: {start: 0.9, stop: 0.85}}\n"
                "hot_pin: {uses: 4, share: 0.1}\n"
                "floors: {\"private:acme\": {host: 64MiB}, public: {ssd: 1GiB}}\n"),
      options));
  const StorePolicies& policies = options.policies;
  EXPECT_EQ(policies.host.marks.start, 0.8);
  EXPECT_EQ(policies.host.marks.hard, 0.9);
  EXPECT_EQ(policies.ssd.marks.start, 0.9);
  EXPECT_EQ(policies.ssd.marks.hard, 0.95);
  EXPECT_EQ(policies.ssd_admission, policy::SsdAdmissionKind::kS3FifoGhost);
  EXPECT_EQ(policies.hot_pin.uses_min, 4);
  EXPECT_EQ(policies.host.floors.at(ScopeIdOf({ScopeKind::kPrivate, "acme"})), 64 << 20);
  EXPECT_EQ(policies.ssd.floors.at(ScopeIdOf({ScopeKind::kPublic, ""})), 1 << 30);
  EXPECT_EQ(policies.host.floors.size() + policies.ssd.floors.size(), 2u);
}

TEST(ConfigFileTest, AbsentAndEmptyFiles) {
  TempDir dir;
  ServerOptions options;
  EXPECT_THAT(ReadConfigFile(dir.path() + "/none.yaml", options),
              StatusIs(absl::StatusCode::kNotFound, "none.yaml"));
  PAGODA_EXPECT_OK(ReadConfigFile(WriteFile(dir, ""), options));
  PAGODA_EXPECT_OK(ReadConfigFile(WriteFile(dir, "# nothing\n"), options));
}

TEST(OptionsTest, RelationsAreChecked) {
  const auto broken = [](auto change, const char* word) {
    ServerOptions options;
    options.data_dir = "/tmp/x";
    PAGODA_EXPECT_OK(options.Validate());
    change(options);
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, word));
  };
  broken([](ServerOptions& o) { o.data_dir = ""; }, "--data-dir");
  broken([](ServerOptions& o) { o.listen = "0.0.0.0:7070"; }, "token_file");
  broken([](ServerOptions& o) { o.listen = "nowhere"; }, "HOST:PORT");
  broken([](ServerOptions& o) { o.metrics_listen = "unix:/x"; }, "none");
  broken([](ServerOptions& o) { o.policies.host.marks.stop = 0.9; }, "host: watermarks");
  broken([](ServerOptions& o) { o.policies.ssd.eviction = "x"; }, "ssd: unknown eviction policy");
  broken([](ServerOptions& o) { o.hbm.device = "gpu0"; }, "nvidia-smi -L");
  broken([](ServerOptions& o) { o.hbm.device = "-1"; }, "hbm.device: is '-1'");
  broken([](ServerOptions& o) { o.hbm.chunk_bytes = 1 << 20; }, "2MiB");
  broken([](ServerOptions& o) { o.hbm.peer_links_max = 1; }, "hbm.peer_links_max: is 1");
  broken([](ServerOptions& o) { o.hbm.capacity_bytes = 1 << 20; }, "hbm.capacity: is 1048576");
  broken(
      [](ServerOptions& o) {
        o.hbm.device = "1";
        o.shm.enabled = false;
      },
      "shm.enabled is false");
  broken([](ServerOptions& o) { o.host.capacity_bytes = 0; }, "host");
  broken([](ServerOptions& o) { o.ssd.capacity_bytes = 1; }, "ssd.capacity");
  broken([](ServerOptions& o) { o.prefetch.loads_max = 0; }, "prefetch loads_max");
  broken([](ServerOptions& o) { o.page_tokens = 48; }, "32, 64, 128 or 256");
  broken([](ServerOptions& o) { o.encode_threads = 0; }, "encode_threads");
  broken([](ServerOptions& o) { o.session_timeout = absl::Seconds(3); }, "twice");
  broken([](ServerOptions& o) { o.lease = absl::Milliseconds(10); }, "lease_seconds");
  broken([](ServerOptions& o) { o.limits.batch_pages_max = 0; }, "limits.batch_pages_max");
  ServerOptions open;
  open.data_dir = "/tmp/x";
  open.listen = "0.0.0.0:7070";
  open.token_file = "/tmp/tokens";
  EXPECT_THAT(open.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, "insecure"));
  open.insecure = true;
  PAGODA_EXPECT_OK(open.Validate());
}

TEST(OptionsTest, TlsIsAllOrNothing) {
  ServerOptions mutual;
  mutual.data_dir = "/tmp/x";
  mutual.listen = "0.0.0.0:7070";
  mutual.tls.certificate = "c";
  mutual.tls.key = "k";
  mutual.tls.client_ca = "a";
  PAGODA_EXPECT_OK(mutual.Validate());  // the certificate says who may come
  const auto broken = [&](auto change, const char* word) {
    ServerOptions options = mutual;
    change(options);
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, word));
  };
  broken([](ServerOptions& o) { o.tls.certificate = ""; }, "tls.certificate: is not set");
  broken([](ServerOptions& o) { o.tls.key = ""; }, "tls.key: is not set");
  broken([](ServerOptions& o) { o.tls.client_ca = ""; }, "tls.require_client_certificate: false");
  broken([](ServerOptions& o) { o.listen = "unix:/x"; }, "Unix socket");
  broken([](ServerOptions& o) { o.insecure = true; }, "leave one");
  broken([](ServerOptions& o) { o.tls.require_client_certificate = false; }, "token_file");
  ServerOptions tokens = mutual;
  tokens.tls.client_ca = "";
  tokens.tls.require_client_certificate = false;
  tokens.token_file = "/tmp/tokens";
  PAGODA_EXPECT_OK(tokens.Validate());
}

TEST(ListenAddressTest, FormsAndLocality) {
  const struct {
    const char* text;
    bool local;
  } good[] = {{"127.0.0.1:7070", true}, {"127.9.9.9:1", true}, {"[::1]:70", true},
              {"localhost:0", true},    {"unix:/a/b", true},   {"0.0.0.0:7070", false},
              {"[::]:7070", false},     {"10.0.0.1:1", false}, {"host.example:65535", false}};
  for (const auto& row : good) {
    const auto parsed = ParseListenAddress(row.text);
    PAGODA_ASSERT_OK(parsed) << row.text;
    EXPECT_EQ(parsed->is_local(), row.local) << row.text;
    EXPECT_EQ(parsed->ToString(), row.text);
  }
  for (const char* text : {"", ":7070", "host", "host:", "host:x", "host:65536", "host:-1",
                           "::1:70", "unix:", "[]:1"}) {
    EXPECT_THAT(ParseListenAddress(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(ParseListenAddress("unix:/" + std::string(200, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, "shorter"));
}

constexpr char kTokens[] =
    "tokens:\n"
    "  - {token: aaaaaaaaaaaaaaaa, tenant: acme, groups: [legal], publish: true}\n"
    "  - {token: bbbbbbbbbbbbbbbb, tenant: evil, push: false, admin: true}\n";

TEST(TokenFileTest, ReadsEntriesAndRefusesOpenFiles) {
  TempDir dir;
  const auto entries = ReadTokenFile(WriteFile(dir, kTokens));
  PAGODA_ASSERT_OK(entries);
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].groups, std::vector<std::string>{"legal"});
  EXPECT_TRUE((*entries)[0].publish);
  EXPECT_TRUE((*entries)[0].push);
  EXPECT_FALSE((*entries)[0].admin);
  EXPECT_FALSE((*entries)[1].push);
  for (const mode_t mode : {mode_t{0640}, mode_t{0604}, mode_t{0620}}) {
    EXPECT_THAT(ReadTokenFile(WriteFile(dir, kTokens, mode)),
                StatusIs(absl::StatusCode::kFailedPrecondition, "chmod 600"));
  }
  EXPECT_THAT(ReadTokenFile(dir.path() + "/none"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(TokenFileTest, MistakesNeverShowAToken) {
  const struct {
    const char* text;
    const char* word;
  } table[] = {
      {"tokens: []", "1 to 10000"},
      {"{}", "1 to 10000"},
      {"tokens: 5", "a list of maps"},
      {"tokens: [{token: short, tenant: a}]", "openssl rand"},
      {"tokens: [{token: 'sixteen chars with', tenant: a}]", "openssl rand"},
      {"tokens: [{token: aaaaaaaaaaaaaaaa}]", "tenant"},
      {"tokens: [{token: aaaaaaaaaaaaaaaa, tenant: 'a b'}]", "tenant"},
      {"tokens: [{token: aaaaaaaaaaaaaaaa, tenant: a, groups: [x/y]}]", "groups"},
      {"tokens: [{token: aaaaaaaaaaaaaaaa, tenant: a, groups: x}]", "a list of texts"},
      {"tokens: [{token: aaaaaaaaaaaaaaaa, tenant: a, admn: true}]", "did you mean admin?"},
      {"tokens: [{token: aaaaaaaaaaaaaaaa, tenant: a}, {token: aaaaaaaaaaaaaaaa, tenant: b}]",
       "twice"},
      {"token: x", "did you mean tokens?"},
  };
  for (const auto& row : table) {
    TempDir dir;
    const auto entries = ReadTokenFile(WriteFile(dir, row.text));
    EXPECT_THAT(entries, StatusIs(absl::StatusCode::kInvalidArgument, row.word)) << row.text;
    EXPECT_EQ(std::string(entries.status().message()).find("aaaaaaaa"), std::string::npos);
    EXPECT_EQ(std::string(entries.status().message()).find("sixteen"), std::string::npos);
  }
}

TEST(CallerTest, TokensNameTenantsScopesAndRights) {
  TempDir dir;
  const CallerTable table(*ReadTokenFile(WriteFile(dir, kTokens)), std::string(32, 's'));
  std::multimap<grpc::string_ref, grpc::string_ref> metadata;
  EXPECT_THAT(table.Identify(metadata), StatusIs(absl::StatusCode::kUnauthenticated, "no token"));
  const auto identify = [&](const char* value) {
    metadata = {{"authorization", value}};
    return table.Identify(metadata);
  };
  for (const char* value : {"", "Bearer", "Bearer ", "Bearer aaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa",
                            "Bearer aaaaaaaaaaaaaaaab", "Basic aaaaaaaaaaaaaaaa"}) {
    EXPECT_THAT(identify(value), StatusIs(absl::StatusCode::kUnauthenticated)) << value;
  }
  const CallerPtr acme = *identify("Bearer aaaaaaaaaaaaaaaa");
  const CallerPtr evil = *identify("bearer bbbbbbbbbbbbbbbb");
  EXPECT_EQ(acme->tenant(), "acme");
  EXPECT_FALSE(acme->is_admin());
  EXPECT_TRUE(evil->is_admin());
  ASSERT_EQ(acme->scopes().size(), 3u);  // private, group:legal, public
  EXPECT_TRUE(acme->scopes()[2].may_push);
  ASSERT_EQ(evil->scopes().size(), 2u);
  EXPECT_FALSE(evil->scopes()[0].may_push);
  EXPECT_FALSE(evil->scopes()[1].may_push);
  EXPECT_NE(acme->pusher(), evil->pusher());
  EXPECT_NE(acme->scopes()[0].secret, evil->scopes()[0].secret);
  EXPECT_EQ(acme->scopes()[2].id, evil->scopes()[1].id);
  EXPECT_THAT(evil->ScopeById(acme->scopes()[0].id), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(evil->ScopeById(acme->scopes()[1].id), StatusIs(absl::StatusCode::kPermissionDenied));
}

}  // namespace
}  // namespace pagoda
