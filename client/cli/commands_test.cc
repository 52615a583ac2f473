// Goal: every command asks what its flags say, shows what the daemon answers, and every mistake is
// one line with a remedy and the right exit code. Method: the real binary against an Admin service
// whose answers are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "client/cli/temp_folder.h"
#include "client/cli/testing/fake_admin.h"
#include "client/cli/testing/run_program.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr int kFailure = 1;
constexpr int kUsage = 2;

class CommandsTest : public ::testing::Test {
 protected:
  // With --daemon.
  ProgramResult Run(std::vector<std::string> arguments,
                    const std::vector<std::string>& variables = {}) {
    arguments.insert(arguments.end(), {"--daemon", admin_.address()});
    admin_.Synchronize();
    ProgramResult result = RunProgram("pagoda", arguments, variables);
    admin_.Synchronize();
    return result;
  }
  // Nothing on stdout, one line on stderr that contains both texts.
  static void ExpectError(const ProgramResult& result, int exit_code, const std::string& cause,
                          const std::string& remedy) {
    EXPECT_EQ(result.exit_code, exit_code) << result.errors;
    EXPECT_EQ(result.output, "");
    EXPECT_EQ(Lines(result.errors).size(), 1u) << result.errors;
    EXPECT_THAT(result.errors, AllOf(StartsWith("pagoda"), HasSubstr(cause), HasSubstr(remedy)));
  }

  FakeAdmin admin_;
  const std::string key_ = std::string(32, '\xab');
  const std::string key_hex_ = absl::BytesToHexString(key_);
};

// ---- The command line
// ----------------------------------------------------------------------------

TEST_F(CommandsTest, HelpOfEveryCommandTeaches) {
  for (const char* command : {"demo", "status", "top", "models", "pages", "pin", "unpin", "evict",
                              "ladder", "policy", "drain", "flush", "bench", "replay"}) {
    const ProgramResult result = RunProgram("pagoda", {command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("Example: pagoda"), HasSubstr("JSON keys:"), HasSubstr("--json")))
        << command;
    EXPECT_EQ(result.errors, "") << command;
  }
  const ProgramResult ppl = RunProgram("pagoda", {"eval", "ppl", "--help"});
  EXPECT_EQ(ppl.exit_code, 0);
  EXPECT_THAT(ppl.output, AllOf(HasSubstr("Example: pagoda eval ppl"), HasSubstr("JSON keys:")));
  EXPECT_THAT(RunProgram("pagoda", {"--help"}).output, HasSubstr("status"));
  EXPECT_THAT(RunProgram("pagoda", {"--version"}).output, HasSubstr("."));
}

TEST_F(CommandsTest, UnknownWordsAreNamedWithTheNearest) {
  ExpectError(RunProgram("pagoda", {"sttaus"}), kUsage, "unknown command \"sttaus\"",
              "did you mean status?");
  ExpectError(RunProgram("pagoda", {"frobnicate"}), kUsage, "\"frobnicate\"; commands are demo,",
              "pagoda --help");
  ExpectError(Run({"status", "--demon=x"}), kUsage, "unknown flag \"--demon=x\"",
              "did you mean --daemon?");
  ExpectError(Run({"status", "extra"}), kUsage, "unexpected argument \"extra\"",
              "\"pagoda status --help\"");
  ExpectError(RunProgram("pagoda", {}), kUsage, "a command is missing", "commands are demo,");
  ExpectError(RunProgram("pagoda", {"eval"}), kUsage, "a command is missing", "commands are ppl");
  EXPECT_EQ(admin_.call_count, 0);
}

TEST_F(CommandsTest, ValuesOutOfRangeAreUsageErrors) {
  ExpectError(Run({"status", "--timeout", "0"}), kUsage, "--timeout", "--help");
  ExpectError(Run({"status", "--timeout", "soon"}), kUsage, "--timeout", "--help");
  ExpectError(Run({"pages", "--limit", "0"}), kUsage, "--limit", "--help");
  ExpectError(Run({"pages", "--tier", "moon"}), kUsage, "--tier", "ssd");
  ExpectError(Run({"pages", "--key", "abc"}), kUsage, "--key", "is not 64 hex digits");
  ExpectError(Run({"pages", "--scope-id", key_hex_}), kUsage, "--scope-id", "32 hex digits");
  ExpectError(Run({"ladder", "all", "q7"}), kUsage, "q7", "--help");
  ExpectError(Run({"ladder", "all"}), kUsage, "precision", "--help");
  ExpectError(Run({"top", "--once", "--count", "3"}), kUsage, "--count", "--help");
  ExpectError(RunProgram("pagoda", {"bench", "--dim", "20"}), kUsage, "20", "--help");
  ExpectError(RunProgram("pagoda", {"bench", "--self", "--daemon", "x:1"}), kUsage, "--self",
              "--help");
  ExpectError(RunProgram("pagoda", {"eval", "codecs", "--codec", "q5"}), kUsage, "q5", "--help");
  ExpectError(RunProgram("pagoda", {"eval", "codecs", "--resume"}), kUsage,
              "name it with --json FILE", "--help");
  ExpectError(RunProgram("pagoda", {"eval", "profile", "--measure-tokens", "100"}), kUsage,
              "--measure-tokens 100", "--help");
  ExpectError(RunProgram("pagoda", {"eval", "ppl", "--tokens", "100"}), kUsage, "--tokens 100",
              "at least 134");
  EXPECT_EQ(admin_.call_count, 0);
}

// ---- Errors of the daemon
// --------------------------------------------------------------------------

TEST_F(CommandsTest, ADaemonThatIsAwayIsNamedWithARemedy) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"status"},
                                             {"models"},
                                             {"pages"},
                                             {"top", "--once"},
                                             {"evict", "--all"},
                                             {"ladder", "all", "q8"},
                                             {"drain"},
                                             {"flush"},
                                             {"pin", "--all"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--daemon", "unix:/nowhere/pagodad.sock"});
    ExpectError(RunProgram("pagoda", arguments), kFailure,
                "no daemon answers at unix:/nowhere/pagodad.sock", "start pagodad");
  }
}

TEST_F(CommandsTest, RefusalsSayWhichTokenIsNeeded) {
  admin_.failure = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token");
  ExpectError(Run({"status"}), kFailure, "does not accept calls without a token", "--token");
  ExpectError(Run({"status", "--token", "t"}), kFailure, "does not accept this token", "--token");
  admin_.failure = grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "acme is no admin");
  ExpectError(Run({"status"}), kFailure, "acme is no admin", "admin: true");
  admin_.failure = grpc::Status(grpc::StatusCode::INTERNAL, "two\nlines");
  ExpectError(Run({"status"}), kFailure, "two lines", admin_.address());
}

TEST_F(CommandsTest, TheTokenIsSentAndMayComeFromTheEnvironment) {
  EXPECT_EQ(Run({"status", "--token", "secret-of-mine"}).exit_code, 0);
  EXPECT_EQ(admin_.authorization, "Bearer secret-of-mine");
  EXPECT_EQ(Run({"status"}, {"PAGODA_TOKEN=from-outside"}).exit_code, 0);
  EXPECT_EQ(admin_.authorization, "Bearer from-outside");
  EXPECT_EQ(Run({"status"}).exit_code, 0);
  EXPECT_EQ(admin_.authorization, "");
}

TEST_F(CommandsTest, ASlowDaemonIsAnErrorAfterTheTimeout) {
  admin_.delay_milliseconds = 300;
  ExpectError(Run({"status", "--timeout", "0.05"}), kFailure, "did not answer within 0.05 s",
              "--timeout");
}

// ---- JSON
// ------------------------------------------------------------------------------------------

TEST_F(CommandsTest, JsonToAFileBesideTheTextOrToStdoutAlone) {
  absl::StatusOr<TempFolder> folder = TempFolder::Make("commands_test_");
  PAGODA_ASSERT_OK(folder);
  admin_.status.set_version("9.9");
  const std::string path = folder->File("status.json");
  const ProgramResult to_file = Run({"status", "--json", path});
  EXPECT_EQ(to_file.exit_code, 0);
  EXPECT_THAT(to_file.output, HasSubstr("pagodad 9.9"));
  EXPECT_EQ(Json::parse(std::ifstream(path))["version"], "9.9");

  const ProgramResult to_stdout = Run({"status", "--json", "-"});
  EXPECT_EQ(Json::parse(to_stdout.output)["version"], "9.9");
  EXPECT_THAT(to_stdout.errors, HasSubstr("pagodad 9.9"));
}

TEST_F(CommandsTest, ABadJsonPathIsRefusedBeforeAnythingIsDone) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"status"}, {"evict", "--all"}, {"drain"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--json", "/nowhere/out.json"});
    ExpectError(Run(arguments), kFailure, "/nowhere/out.json", "- for stdout");
  }
  ExpectError(RunProgram("pagoda", {"demo", "--json", "/nowhere/x"}), kFailure, "/nowhere/x",
              "stdout");
  EXPECT_EQ(admin_.call_count, 0);
}

// ---- What the commands do
// ----------------------------------------------------------------------------

TEST_F(CommandsTest, StatusAndTop) {
  admin_.status.set_state("draining");
  (*admin_.status.mutable_counters())["pagoda_x_total"] = 5;
  EXPECT_THAT(Run({"status"}).output, HasSubstr("draining"));
  EXPECT_THAT(Run({"status", "--counters"}).output, HasSubstr("pagoda_x_total"));
  const ProgramResult top = Run({"top", "--count", "2", "--interval", "0.05", "--json", "-"});
  EXPECT_EQ(top.exit_code, 0);
  EXPECT_EQ(Json::parse(top.output)["counters_per_second"]["pagoda_x_total"], 0);
  EXPECT_EQ(top.errors.find('\x1b'), std::string::npos);  // no terminal, no escapes
  EXPECT_EQ(admin_.call_count, 4);
}

TEST_F(CommandsTest, PolicyShowsAndChanges) {
  v1::PolicySet& set = *admin_.policy.mutable_policy();
  set.mutable_host()->set_eviction("lru");
  set.mutable_host()->mutable_watermarks()->set_start(0.85);
  set.mutable_ssd()->set_eviction("lru");
  set.set_ssd_admission("second_touch");
  set.mutable_hot_pin()->set_uses(4);
  set.mutable_hot_pin()->set_share(0.25);
  set.add_floors()->set_host_bytes(1 << 20);
  admin_.policy.add_evictions("lru");
  const ProgramResult shown = Run({"policy", "--json", "-"});
  EXPECT_FALSE(admin_.policy_request.has_policy());
  const Json json = Json::parse(shown.output);
  EXPECT_EQ(json["host"]["start"], 0.85);
  EXPECT_EQ(json["ssd_admission"], "second_touch");
  EXPECT_EQ(json["floors"][0]["host_bytes"], 1 << 20);
  EXPECT_THAT(Run({"policy"}).output, AllOf(HasSubstr("second_touch"), HasSubstr("4 uses")));
  EXPECT_EQ(Run({"policy", "--host", "lru", "--ssd-marks", "0.9", "0.8", "0.97"}).exit_code, 0);
  EXPECT_EQ(admin_.policy_request.policy().host().eviction(), "lru");
  EXPECT_FALSE(admin_.policy_request.policy().host().has_watermarks());
  EXPECT_EQ(admin_.policy_request.policy().ssd().watermarks().hard(), 0.97);
  EXPECT_FALSE(admin_.policy_request.policy().has_hot_pin());
  ExpectError(Run({"policy", "--hot-uses", "3"}), kUsage, "--hot-share", "--help");
  ExpectError(Run({"policy", "--admission", "never"}), kUsage, "never", "second_touch");
}

TEST_F(CommandsTest, ModelsAndLadder) {
  v1::ModelStatus& model = *admin_.models.add_models();
  model.set_model("smol");
  model.set_identity(key_);
  model.set_ladder(v1::PRECISION_Q8);
  model.set_pages(12);
  model.add_k_lo_layers(3);
  model.mutable_steps()->set_idle(v1::PRECISION_Q4);
  model.mutable_steps()->set_idle_after_seconds(600);
  model.mutable_steps()->set_ssd(v1::PRECISION_Q4);
  v1::ModelStatus& other = *admin_.models.add_models();
  other.set_model("other");
  other.set_profile_problem("profile: of model 1234");
  const ProgramResult models = Run({"models", "--json", "-"});
  const Json rows = Json::parse(models.output)["models"];  // by name
  EXPECT_EQ(rows[0]["profile_problem"], "profile: of model 1234");
  EXPECT_EQ(rows[1]["identity"], key_hex_);
  EXPECT_EQ(rows[1]["ladder"], "q8");
  EXPECT_EQ(rows[1]["k_lo_layers"], Json::array({3}));
  EXPECT_THAT(models.errors, HasSubstr("smol"));
  EXPECT_THAT(models.errors, HasSubstr("q8, idle 600s q4, ssd q4 "));
  EXPECT_EQ(rows[1]["steps"]["idle_after_seconds"], 600);
  EXPECT_FALSE(rows[1]["steps"].contains("pressure"));
  EXPECT_THAT(models.errors, HasSubstr("1 layer "));
  EXPECT_THAT(models.errors, HasSubstr("other: profile: of model 1234"));
  admin_.models.mutable_models()->RemoveLast();

  admin_.ladder.set_pages_queued(7);
  EXPECT_THAT(Run({"ladder", "smol", "q4"}).output, HasSubstr("7 pages queued"));
  EXPECT_EQ(admin_.ladder_request.identity(), key_);
  EXPECT_EQ(admin_.ladder_request.ladder(), v1::PRECISION_Q4);
  EXPECT_EQ(Run({"ladder", "all", "raw16"}).exit_code, 0);
  EXPECT_EQ(admin_.ladder_request.identity(), "");
  ExpectError(Run({"ladder", "small", "q4"}), kFailure, "no model \"small\"", "knows smol");
}

TEST_F(CommandsTest, PagesWithFilters) {
  for (int i = 0; i < 3; ++i) {
    v1::PageRecord& page = *admin_.pages.add_pages();
    page.set_key(key_);
    page.set_scope_kind(v1::SCOPE_KIND_PUBLIC);
    page.set_precision(v1::PRECISION_RAW16);
    page.add_tiers(v1::TIER_HOST);
    page.add_tiers(v1::TIER_SSD);
    page.set_bytes(1 << 20);
  }
  const ProgramResult result =
      Run({"pages", "--key", key_hex_, "--precision", "raw16", "--tier", "host", "--scope-id",
           key_hex_.substr(0, 32), "--identity", key_hex_, "--limit", "3", "--json", "-"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(admin_.pages_request.limit(), 3u);
  EXPECT_EQ(admin_.pages_request.filter().key(), key_);
  EXPECT_EQ(admin_.pages_request.filter().identity(), key_);
  EXPECT_EQ(admin_.pages_request.filter().scope_id(), key_.substr(0, 16));
  EXPECT_EQ(admin_.pages_request.filter().tier(), v1::TIER_HOST);
  EXPECT_EQ(admin_.pages_request.filter().precision(), v1::PRECISION_RAW16);
  EXPECT_THAT(result.errors, HasSubstr("3 pages, 3.0 MiB; stopped at --limit"));
  EXPECT_THAT(result.errors, HasSubstr("host+ssd"));
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["pages"].size(), 3u);  // from two batches
  EXPECT_EQ(json["pages"][2]["key"], key_hex_);
  EXPECT_EQ(json["pages"][2]["tiers"], (std::vector<std::string>{"host", "ssd"}));
  EXPECT_THAT(Run({"pages", "--full"}).output, HasSubstr(key_hex_));
  admin_.pages.clear_pages();
  EXPECT_EQ(Run({"pages"}).output, "0 pages, 0 B\n");
}

TEST_F(CommandsTest, PinAndUnpinNeedAFilterOrAll) {
  admin_.pinned.set_pages(4);
  EXPECT_THAT(Run({"pin", "--key", key_hex_}).output, HasSubstr("pinned 4 pages"));
  EXPECT_EQ(admin_.pin_request.filter().key(), key_);
  EXPECT_THAT(Run({"unpin", "--all"}).output, HasSubstr("unpinned 4 pages (every page)"));
  EXPECT_EQ(admin_.unpin_request.filter().key(), "");
  const int calls = admin_.call_count;
  ExpectError(Run({"pin"}), kUsage, "no filter", "--all");
  EXPECT_EQ(admin_.call_count, calls);
}

TEST_F(CommandsTest, EvictRefusesEverythingWithoutAll) {
  ExpectError(Run({"evict"}), kUsage, "drops every page", "--all");
  ExpectError(Run({"evict", "--all", "--tier", "host"}), kUsage, "exclude each other", "--help");
  EXPECT_EQ(admin_.call_count, 0);
  admin_.evicted.set_pages(10);
  admin_.evicted.set_bytes(1 << 20);
  admin_.evicted.set_pages_kept(2);
  const ProgramResult result = Run({"evict", "--tier", "host"});
  EXPECT_EQ(result.output,
            "evicted 10 pages, 1.0 MiB (pages with tier host)\n"
            "kept 2 pages that are leased or pinned\n");
  EXPECT_EQ(admin_.evict_request.filter().tier(), v1::TIER_HOST);
  EXPECT_EQ(Json::parse(Run({"evict", "--all", "--json", "-"}).output)["pages_kept"], 2);
}

TEST_F(CommandsTest, DrainAndFlushFailWhenSomethingIsLeft) {
  EXPECT_THAT(Run({"drain", "--timeout", "3"}).output, HasSubstr("drained"));
  EXPECT_EQ(admin_.drain_request.timeout_seconds(), 3);
  admin_.drained.set_sessions_left(2);
  ExpectError(Run({"drain"}), kFailure, "2 sessions are open", "--timeout");
  EXPECT_THAT(Run({"flush", "--timeout", "4"}).output, HasSubstr("flushed"));
  EXPECT_EQ(admin_.flush_request.timeout_seconds(), 4);
  admin_.flushed.set_pages_unpersisted(5);
  ExpectError(Run({"flush"}), kFailure, "5 pages are not on SSD", "--timeout");
}

// ---- What needs no daemon
// ------------------------------------------------------------------------------

TEST_F(CommandsTest, AModelOrTextThatIsMissingIsNamedWithARemedy) {
  const ProgramResult demo = RunProgram("pagoda", {"demo", "--model", "/nowhere/model.gguf"});
  EXPECT_EQ(demo.exit_code, kFailure);
  EXPECT_THAT(demo.errors, AllOf(HasSubstr("/nowhere/model.gguf"), HasSubstr("quickstart.sh")));
  const ProgramResult eval = RunProgram("pagoda", {"eval", "ppl"}, {"PAGODA_CACHE_DIR=/nowhere"});
  EXPECT_EQ(eval.exit_code, kFailure);
  EXPECT_THAT(eval.errors, HasSubstr("/nowhere/models"));
}

}  // namespace
}  // namespace pagoda::cli
