#include "tests/integration/crash_writer.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "pagoda/v1/admin.grpc.pb.h"
#include "tests/integration/crash_streams.h"

namespace pagoda {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);

client::ClientOptions OptionsOf(const std::string& target, int stream) {
  client::ClientOptions options;
  options.target = target;
  options.token = CrashStreams()[stream].token;
  options.model = CrashDocument(stream, 0).model();
  options.reconnect_interval = absl::Milliseconds(20);
  options.control_timeout = kPatience;
  return options;
}

ContentHash ContentOf(const client::PushItem& item) {
  std::vector<SegmentEntry> segments(item.segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i].length = static_cast<uint32_t>(item.segments[i].size());
    segments[i].crc32c = item.segment_crc32c[i];
  }
  return ContentHashOf(segments);
}

class StreamWriter {
 public:
  StreamWriter(const std::string& target, const CrashLog& log, int stream, uint32_t seed)
      : target_(target), log_(log), stream_(stream), rng_(seed) {}

  [[noreturn]] void Run() {
    while (true) {
      auto client = client::Client::Create(OptionsOf(target_, stream_));
      if (!client.ok() || !(*client)->WaitConnected(kPatience).ok()) continue;
      for (int i = 0; i < 1000 && (*client)->connected(); ++i) Step(**client);
    }
  }

 private:
  void Step(client::Client& client) {
    const auto scope = client.FindScope(CrashStreams()[stream_].scope);
    if (!scope.has_value()) return;
    const int document = static_cast<int>(rng_() % kCrashDocuments);
    const uint32_t dice = rng_() % 10;
    if (dice < 6) {
      Push(client, *scope, document, /*abort=*/dice == 0);
    } else if (dice == 6) {
      PushPoison(client, *scope, document);
    } else {
      Fetch(client, *scope, document);
    }
  }

  void Push(client::Client& client, const client::ScopeInfo& scope, int document, bool abort) {
    const SyntheticDocument pages = CrashDocument(stream_, document);
    const std::vector<PageKey> keys = pages.KeysFrom(scope.root);
    const std::string identity = IdentityOf(pages.model()).hex();
    std::vector<client::PushItem> items;
    std::string offers;
    for (int i = 0; i < kCrashDocumentPages; ++i) {
      items.push_back(pages.Item(scope, keys, i));
      absl::StrAppend(&offers, "offer ", stream_, " ", document, " ", i, " ", keys[i].hex(), " ",
                      identity, " ", scope.id.hex(), " ", ContentOf(items.back()).hex(), "\n");
    }
    log_.Append(offers);
    const auto answered = [this, keys, document](const PageKey& key,
                                                 const absl::StatusOr<client::PushOutcome>& how) {
      if (!how.ok()) return;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (keys[i] == key)
          log_.Append(absl::StrCat("stored ", stream_, " ", document, " ", i, "\n"));
      }
    };
    auto pusher = client.OpenPusher({}, answered);
    if (!pusher.ok()) return;
    for (client::PushItem& item : items) {
      if (!(*pusher)->Push(std::move(item)).ok()) return;
    }
    if (!abort) (*pusher)->Flush(kPatience).IgnoreError();
  }

  void PushPoison(client::Client& client, const client::ScopeInfo& scope, int document) {
    const SyntheticDocument pages = PoisonDocument(stream_, document);
    client::PushItem item = pages.Item(scope, pages.KeysFrom(scope.root), 0);
    item.segment_crc32c.back() ^= 1;
    auto pusher = client.OpenPusher({}, nullptr);
    if (!pusher.ok() || !(*pusher)->Push(std::move(item)).ok()) return;
    (*pusher)->Flush(kPatience).IgnoreError();
  }

  void Fetch(client::Client& client, const client::ScopeInfo& scope, int document) {
    const SyntheticDocument pages = CrashDocument(stream_, document);
    const std::vector<PageKey> keys = pages.KeysFrom(scope.root);
    client::LookupQuery query;
    query.chains = {{scope.id, keys}};
    query.precision_min = Precision::kQ2;
    query.fidelity_min = Precision::kQ2;
    const auto hit = client.Lookup(query);
    if (!hit.ok() || hit->pages.empty()) return;
    const int next = (document + 1) % kCrashDocuments;
    client
        .Prefetch({{scope.id, CrashDocument(stream_, next).KeysFrom(scope.root)}}, absl::Seconds(1))
        .IgnoreError();
    const auto fetched = client.Fetch(*hit, keys, {});
    client.Release(hit->lease);
    if (!fetched.ok()) return;
    for (size_t i = 0; i < fetched->pages.size(); ++i) {
      if (pages.Matches(fetched->pages[i], static_cast<int>(i))) continue;
      log_.Append(absl::StrCat("wrong bytes under load: stream ", stream_, " document ", document,
                               " page ", i, "\n"));
    }
  }

  const std::string target_;
  const CrashLog& log_;
  const int stream_;
  std::mt19937 rng_;
};

class AdminWriter {
 public:
  AdminWriter(const std::string& target, uint32_t seed)
      : admin_(v1::Admin::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()))),
        rng_(seed) {}

  [[noreturn]] void Run() {
    while (true) {
      absl::SleepFor(absl::Milliseconds(10 + rng_() % 60));
      const uint32_t dice = rng_() % 12;
      if (dice < 8) {
        Flush();  // so that kills find something on the disk
      } else if (dice < 11) {
        EvictOne();
      } else {
        SetLadder();
      }
    }
  }

 private:
  template <typename Call>
  bool With(const Call& call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    context.AddMetadata("authorization", absl::StrCat("Bearer ", CrashAdminToken()));
    return call(context).ok();
  }

  void Flush() {
    v1::FlushResponse flushed;
    With([&](auto& context) { return admin_->Flush(&context, v1::FlushRequest(), &flushed); });
  }

  // Some page and all that follow it, in one tier or everywhere.
  void EvictOne() {
    v1::ListPagesRequest list;
    list.set_limit(1 + rng_() % 64);
    v1::PageRecord victim;
    With([&](auto& context) {
      v1::ListPagesResponse batch;
      auto reader = admin_->ListPages(&context, list);
      while (reader->Read(&batch)) {
        if (batch.pages_size() > 0) victim = batch.pages(batch.pages_size() - 1);
      }
      return reader->Finish();
    });
    if (victim.key().empty()) return;
    constexpr v1::Tier kTiers[] = {v1::TIER_UNSPECIFIED, v1::TIER_HOST, v1::TIER_SSD};
    v1::EvictRequest evict;
    evict.mutable_filter()->set_key(victim.key());
    evict.mutable_filter()->set_tier(kTiers[rng_() % 3]);
    v1::EvictResponse evicted;
    With([&](auto& context) { return admin_->Evict(&context, evict, &evicted); });
  }

  // Of every model: pages come at all precisions, and go down.
  void SetLadder() {
    v1::SetLadderRequest request;
    request.set_ladder(
        static_cast<v1::Precision>(kStoredPrecisions[rng_() % kStoredPrecisions.size()]));
    v1::SetLadderResponse response;
    With([&](auto& context) { return admin_->SetLadder(&context, request, &response); });
  }

  const std::unique_ptr<v1::Admin::Stub> admin_;
  std::mt19937 rng_;
};

}  // namespace

void RunCrashWriter(const std::string& target, const std::string& log_path, uint32_t seed) {
  const CrashLog log(log_path);
  std::vector<std::thread> threads;
  for (int stream = 0; stream < static_cast<int>(CrashStreams().size()); ++stream) {
    threads.emplace_back([&, stream] {
      StreamWriter(target, log, stream, seed + static_cast<uint32_t>(stream)).Run();
    });
  }
  AdminWriter(target, seed + 99).Run();
}

}  // namespace pagoda
