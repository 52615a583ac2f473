// Goal: over TCP only who the settings let in gets in, everybody else is told why within a
// deadline, and certificates change without a restart. Method: real daemons in this process behind
// their own acceptor, certificates made here, the real client.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "client/channel.h"
#include "client/connect_advice.h"
#include "proto/tls_files.h"
#include "tests/integration/shm_fixture.h"
#include "tests/integration/test_certificates.h"

namespace pagoda {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr char kLocalhost[] = "IP:127.0.0.1,DNS:localhost,DNS:pagodad.test";

class TlsTest : public ShmTest {
 protected:
  void SetUp() override {
    if (!TestCertificates::Possible()) GTEST_SKIP() << "no openssl program";
    made_.MakeAuthority("ca");
    made_.Make("daemon", "ca", kLocalhost);
    made_.Make("worker", "ca", "URI:spiffe://test/worker");
    daemon_.options().listen = "127.0.0.1:0";
    daemon_.options().tls.certificate = made_.Certificate("daemon");
    daemon_.options().tls.key = made_.Key("daemon");
    daemon_.options().tls.client_ca = made_.Certificate("ca");
  }

  client::TlsOptions Tls(const std::string& name = "worker", const std::string& ca = "ca") {
    client::TlsOptions tls;
    tls.ca = made_.Certificate(ca);
    if (!name.empty()) {
      tls.certificate = made_.Certificate(name);
      tls.key = made_.Key(name);
    }
    return tls;
  }
  absl::StatusOr<std::unique_ptr<client::Client>> TryClient(const client::TlsOptions& tls) {
    client::ClientOptions options;
    options.target = daemon_.server().address();
    options.tls = tls;
    options.model = spec_;
    options.shm_socket = "none";  // pages go over TLS too
    options.reconnect_interval = absl::Milliseconds(50);
    return client::Client::Create(options);
  }
  // Of a client that gets in.
  std::unique_ptr<client::Client> Admitted(const client::TlsOptions& tls) {
    auto made = TryClient(tls);
    PAGODA_EXPECT_OK(made);
    PAGODA_EXPECT_OK((*made)->WaitConnected(kPatience));
    return *std::move(made);
  }
  // Why the daemon and this client do not come together, once an attempt was made.
  std::string Refusal(const client::TlsOptions& tls) {
    auto made = TryClient(tls);
    PAGODA_EXPECT_OK(made);
    absl::Status status;
    const absl::Time end = absl::Now() + kPatience;
    do {  // the first word may be that nothing was tried yet
      status = (*made)->WaitConnected(absl::Milliseconds(100));
    } while (absl::StrContains(status.message(), "not connected yet") && absl::Now() < end);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    return std::string(status.message());
  }
  void PushAndFetch(client::Client& client) {
    const auto scope = client.FindScope({ScopeKind::kPrivate, ""});
    ASSERT_TRUE(scope.has_value());
    v1::ScopeInfo info;
    info.set_scope_id(std::string(scope->id.view()));
    info.set_root(std::string(scope->root.view()));
    const std::vector<TestPage> chain = MakeChain(spec_, info);
    auto pusher = client.OpenPusher({}, nullptr);
    PAGODA_ASSERT_OK(pusher);
    for (const TestPage& page : chain) {
      client::PushItem item;
      item.scope = scope->id;
      item.key = page.key;
      item.parent = page.parent;
      item.parent_is_root = page.start.parent_is_root();
      item.token_ids.assign(page.start.token_ids().begin(), page.start.token_ids().end());
      item.base_position = page.start.base_position();
      for (const std::string& segment : page.segments) item.segments.push_back(AsBytes(segment));
      item.segment_crc32c.assign(page.start.segment_crc32c().begin(),
                                 page.start.segment_crc32c().end());
      PAGODA_ASSERT_OK((*pusher)->Push(std::move(item)));
    }
    PAGODA_ASSERT_OK((*pusher)->Flush(kPatience));
    ExpectPushed(Fetch(client, chain), chain);
  }

  TestCertificates made_;
};

TEST_F(TlsTest, WithTheRightCertificatePagesGoBothWays) {
  daemon_.Start();
  const auto client = Admitted(Tls());
  PushAndFetch(*client);
  const client::ClientStats stats = client->stats();
  EXPECT_EQ(stats.grpc.pushed_pages, 4);
  EXPECT_EQ(stats.grpc.fetched_pages, 4);
  EXPECT_EQ(stats.grpc.fetches, 1);
  EXPECT_GT(stats.grpc.fetch_p99, absl::ZeroDuration());
  EXPECT_THAT(stats.PathLines(), HasSubstr("grpc: fetched 4 pages"));
}

TEST_F(TlsTest, AnotherNameInTheCertificate) {
  made_.Make("daemon", "ca", "DNS:pagodad.test");
  daemon_.Start();
  EXPECT_THAT(Refusal(Tls()), HasSubstr("tls.server_name"));
  client::TlsOptions named = Tls();
  named.server_name = "pagodad.test";
  PushAndFetch(*Admitted(named));
}

TEST_F(TlsTest, WithoutACertificateOrWithAWrongOneNobodyGetsIn) {
  made_.MakeAuthority("other");
  made_.Make("stranger", "other", "URI:spiffe://test/worker");
  made_.Make("late", "ca", "URI:spiffe://test/worker", -1);
  daemon_.Start();
  EXPECT_THAT(Refusal(Tls("")), HasSubstr("--tls-cert"));
  EXPECT_THAT(Refusal(Tls("stranger")), HasSubstr("tls.client_ca"));
  EXPECT_THAT(Refusal(Tls("late")), HasSubstr("expired"));
  // The other way round: a daemon of an authority that this client does not know.
  EXPECT_THAT(Refusal(Tls("worker", "other")), HasSubstr("--tls-ca"));
  PushAndFetch(*Admitted(Tls()));
}

TEST_F(TlsTest, OneEndWithoutTls) {
  daemon_.Start();
  EXPECT_THAT(Refusal({}), HasSubstr("the daemon speaks TLS and this client does not"));
  PAGODA_ASSERT_OK(daemon_.Stop());
  daemon_.options().tls = {};
  daemon_.Start();
  EXPECT_THAT(Refusal(Tls()), HasSubstr("does not speak TLS"));
  EXPECT_EQ(client::ConnectAdvice(daemon_.server().address(), {}, kPatience), "");
  EXPECT_EQ(client::ConnectAdvice("unix:/x", Tls(), kPatience), "");
}

TEST_F(TlsTest, TokensAloneWhereTheSettingsSaySo) {
  made_.WriteFile("tokens", "tokens: [{token: sixteen-characters-long, tenant: t}]\n");
  ::chmod(made_.Path("tokens").c_str(), 0600);
  daemon_.options().token_file = made_.Path("tokens");
  daemon_.options().tls.client_ca = "";
  daemon_.options().tls.require_client_certificate = false;
  daemon_.Start();
  client::ClientOptions options;
  options.target = daemon_.server().address();
  options.tls = Tls("");
  options.token = "sixteen-characters-long";
  auto client = client::Client::Create(options);
  PAGODA_ASSERT_OK(client);
  PAGODA_ASSERT_OK((*client)->WaitConnected(kPatience));
  EXPECT_EQ((*client)->server_info()->tenant, "t");
}

// The daemon's certificate and the authority of its clients change; nobody restarts.
TEST_F(TlsTest, FilesAreReadAgainWhenTheyChange) {
  made_.MakeAuthority("next_ca");
  made_.Make("next_daemon", "next_ca", kLocalhost);
  made_.Make("next_worker", "next_ca", "URI:spiffe://test/worker");
  daemon_.options().tls.client_ca = made_.Path("clients.crt");
  std::filesystem::copy_file(made_.Certificate("ca"), made_.Path("clients.crt"));
  daemon_.Start();
  const auto before = Admitted(Tls());
  PushAndFetch(*before);
  EXPECT_THAT(Refusal(Tls("next_worker", "ca")), HasSubstr("tls.client_ca"));

  made_.Replace("daemon", "next_daemon");
  std::filesystem::copy_file(made_.Certificate("next_ca"), made_.Path("next_clients.crt"));
  std::filesystem::rename(made_.Path("next_clients.crt"), made_.Path("clients.crt"));
  PushAndFetch(*Admitted(Tls("next_worker", "next_ca")));
  EXPECT_TRUE(before->connected());  // connections that are open stay
  EXPECT_THAT(Refusal(Tls()), HasSubstr("--tls-ca"));
}

TEST_F(TlsTest, FilesThatDoNotFitAreRefusedAtTheStart) {
  made_.Make("late", "ca", kLocalhost, -1);
  made_.WriteFile("text", "not a certificate\n");
  ::chmod(made_.Path("text").c_str(), 0600);
  const TlsSettings good = daemon_.options().tls;
  const auto refused = [&](auto change) {
    daemon_.options().tls = good;
    change(daemon_.options().tls);
    const absl::Status status = daemon_.TryStart();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  using S = TlsSettings;
  EXPECT_THAT(refused([&](S& s) { s.certificate = made_.Path("none"); }),
              testing::AllOf(HasSubstr("tls.certificate: cannot read"), HasSubstr("/none")));
  EXPECT_THAT(refused([&](S& s) { s.certificate = made_.Path("text"); }), HasSubstr("BEGIN"));
  EXPECT_THAT(refused([&](S& s) { s.certificate = made_.Path(""); }), HasSubstr("not a file"));
  EXPECT_THAT(refused([&](S& s) { s.key = made_.Key("worker"); }), HasSubstr("is not the key of"));
  EXPECT_THAT(refused([&](S& s) { s.key = made_.Path("text"); }), HasSubstr("passphrase"));
  EXPECT_THAT(refused([&](S& s) { s.client_ca = made_.Path("none"); }), HasSubstr("tls.client_ca"));
  EXPECT_THAT(
      refused([&](S& s) { s.certificate = made_.Certificate("late"), s.key = made_.Key("late"); }),
      HasSubstr("expired on"));
  ::chmod(made_.Key("daemon").c_str(), 0644);
  EXPECT_THAT(refused([](S&) {}), HasSubstr("chmod 600"));
  ::chmod(made_.Key("daemon").c_str(), 0640);
  daemon_.options().tls = good;
  PAGODA_EXPECT_OK(daemon_.TryStart());

  client::TlsOptions half = Tls();
  half.key = "";
  EXPECT_FALSE(half.Validate().ok());
  EXPECT_THAT(std::string(Tls("worker", "none").Validate().message()), HasSubstr("tls.ca"));
}

}  // namespace
}  // namespace pagoda
