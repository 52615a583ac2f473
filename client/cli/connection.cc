#include "client/cli/connection.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect_advice.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

// gRPC tells the whole way to a failed connection; the system's reason is its last part.
absl::string_view LastPart(absl::string_view text) {
  const size_t colon = text.rfind(": ");
  return colon == absl::string_view::npos ? text : text.substr(colon + 2);
}

}  // namespace

void AddConnectionFlags(CLI::App& app, ConnectionOptions& options) {
  app.add_option("--daemon", options.daemon, "the daemon: HOST:PORT or unix:PATH")
      ->type_name("ADDRESS")
      ->check([](const std::string& value) {
        return value.empty() ? std::string("is empty; use HOST:PORT or unix:PATH") : std::string();
      })
      ->capture_default_str();
  app.add_option("--token", options.token,
                 "the caller's token, where the daemon has a token file; better given as "
                 "PAGODA_TOKEN, which other users of the machine cannot see")
      ->type_name("TOKEN")
      ->envname("PAGODA_TOKEN");
  AddTlsFlags(app, options.tls);
  app.add_option("--timeout", options.timeout_seconds, "seconds one call may take")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

void AddTlsFlags(CLI::App& app, client::TlsOptions& tls) {
  const auto add = [&app](const char* flag, std::string& value, const char* help,
                          const char* variable) {
    return app.add_option(flag, value, help)->type_name("FILE")->envname(variable);
  };
  CLI::Option* const ca =
      add("--tls-ca", tls.ca, "speak TLS: the authority of the daemon's certificate, PEM",
          "PAGODA_TLS_CA");
  CLI::Option* const certificate =
      add("--tls-cert", tls.certificate, "this client's certificate, where the daemon wants one",
          "PAGODA_TLS_CERT")
          ->needs(ca);
  CLI::Option* const key =
      add("--tls-key", tls.key, "its key, mode 0600", "PAGODA_TLS_KEY")->needs(certificate);
  certificate->needs(key);
  add("--tls-server-name", tls.server_name, "the daemon's name in its certificate, if another",
      "PAGODA_TLS_SERVER_NAME")
      ->type_name("NAME")
      ->needs(ca);
  app.add_flag("--insecure", tls.insecure,
               "let a token go to another machine in plain text, where the network is trusted")
      ->envname("PAGODA_INSECURE");
}

absl::Status ExplainError(const absl::Status& status, const ConnectionOptions& options) {
  const absl::string_view said = status.message();
  std::string message;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return status;
    case absl::StatusCode::kUnavailable:
      message = client::ConnectAdvice(options.daemon, options.tls,
                                      absl::Seconds(options.timeout_seconds));
      if (!message.empty()) {
        message = absl::StrCat("no connection to the daemon at ", options.daemon, ": ", message);
        break;
      }
      message = absl::StrFormat(
          "no daemon answers at %s (%s); start pagodad there, or name another with --daemon",
          options.daemon, LastPart(said));
      break;
    case absl::StatusCode::kDeadlineExceeded:
      message = absl::StrFormat(
          "the daemon at %s did not answer within %g s; raise --timeout, or look at its log",
          options.daemon, options.timeout_seconds);
      break;
    case absl::StatusCode::kUnauthenticated:
      message = absl::StrFormat(
          "the daemon at %s does not accept %s (%s); give one of its token file with --token",
          options.daemon, options.token.empty() ? "calls without a token" : "this token", said);
      break;
    case absl::StatusCode::kPermissionDenied:
      message = absl::StrFormat(
          "the daemon at %s refused (%s); use a token whose entry in its token file says "
          "\"admin: true\"",
          options.daemon, said);
      break;
    case absl::StatusCode::kUnimplemented:
      message = absl::StrFormat(
          "what answers at %s does not know this call (%s); is it a pagodad of "
          "this version?",
          options.daemon, said);
      break;
    default:
      message = absl::StrFormat("the daemon at %s says: %s", options.daemon, said);
  }
  return absl::Status(status.code(), message);
}

AdminConnection::AdminConnection(ConnectionOptions options)
    : options_(std::move(options)),
      settings_(client::CheckSecurity(options_.tls, options_.daemon, options_.token)),
      stub_(settings_.ok()
                ? v1::Admin::NewStub(client::MakeControlChannel(options_.daemon, options_.tls))
                : nullptr) {}

void AdminConnection::Prepare(grpc::ClientContext& context, absl::Duration extra) const {
  client::PrepareContext(context, options_.token, absl::Seconds(options_.timeout_seconds) + extra);
}

absl::StatusOr<v1::StatusResponse> AdminConnection::Status() {
  return Call(&v1::Admin::Stub::Status, v1::StatusRequest());
}

absl::StatusOr<std::vector<v1::ModelStatus>> AdminConnection::Models() {
  PAGODA_ASSIGN_OR_RETURN(const v1::ListModelsResponse response,
                          Call(&v1::Admin::Stub::ListModels, v1::ListModelsRequest()));
  return std::vector<v1::ModelStatus>(response.models().begin(), response.models().end());
}

absl::StatusOr<std::vector<v1::PageRecord>> AdminConnection::Pages(
    const v1::ListPagesRequest& request) {
  PAGODA_RETURN_IF_ERROR(settings_);
  grpc::ClientContext context;
  Prepare(context, absl::ZeroDuration());
  std::vector<v1::PageRecord> pages;
  const auto reader = stub_->ListPages(&context, request);
  v1::ListPagesResponse batch;
  while (reader->Read(&batch)) {
    for (v1::PageRecord& page : *batch.mutable_pages()) pages.push_back(std::move(page));
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) {
    return ExplainError(FromGrpc(status), options_);
  }
  return pages;
}

}  // namespace pagoda::cli
