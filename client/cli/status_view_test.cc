// Goal: a daemon's status is shown whole, rates survive restarts, and a word names one model or
// says why not. Method: statuses made by hand; parts of the texts; exact rates.
#include "client/cli/status_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/cli/counter_rates.h"
#include "client/cli/model_choice.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::StatusResponse SampleStatus() {
  v1::StatusResponse status;
  status.set_version("0.1.0");
  status.set_instance_id("one");
  status.set_uptime_seconds(3725);
  status.set_state("serving");
  status.set_listen("127.0.0.1:7070");
  status.set_data_dir("/var/lib/pagoda");
  v1::TierStatus& hbm = *status.add_tiers();
  hbm.set_tier(v1::TIER_HBM);
  v1::TierStatus& host = *status.add_tiers();
  host.set_tier(v1::TIER_HOST);
  host.set_present(true);
  host.set_capacity_bytes(1 << 30);
  host.set_used_bytes(1 << 29);
  host.set_reserved_bytes(3 << 28);
  host.set_pages(1234);
  (*host.mutable_pages_by_precision())["q4"] = 4;
  (*host.mutable_pages_by_precision())["raw16"] = 1230;
  (*host.mutable_pages_by_precision())["q8"] = 0;
  status.add_paths()->set_path("shm");
  v1::PathStatus& grpc = *status.add_paths();
  grpc.set_path("grpc");
  grpc.set_bytes_out(2 << 20);
  grpc.set_fetches(8);
  grpc.set_fetch_p50_seconds(0.0012);
  grpc.set_fetch_p99_seconds(0.25);
  grpc.set_failures(1);
  status.set_pages(1500);
  status.set_sessions(3);
  status.set_leases(2);
  status.set_leased_pages(80);
  status.set_encode_queue_pages(7);
  (*status.mutable_counters())["pagoda_put_bytes_total"] = 2048;
  (*status.mutable_counters())["pagoda_lookup_requests_total"] = 12345;
  return status;
}

TEST(StatusViewTest, Text) {
  const v1::StatusResponse status = SampleStatus();
  EXPECT_EQ(StatusHeadline(status),
            "pagodad 0.1.0  serving  127.0.0.1:7070  up 1 h 2 min  data /var/lib/pagoda\n");
  const std::string tiers = TierTable(status);
  EXPECT_THAT(tiers, HasSubstr("host  512.0 MiB   1.0 GiB  [##########----------]  50.0 %"));
  EXPECT_THAT(tiers, HasSubstr("1,234  raw16 1,230, q4 4\n"));
  EXPECT_THAT(tiers, HasSubstr("absent: hbm\n"));
  const std::string activity = ActivityLines(status);
  EXPECT_THAT(activity, HasSubstr("1,500 distinct"));
  EXPECT_THAT(activity, HasSubstr("3 sessions, 0 sequences, 2 leases over 80 pages"));
  EXPECT_THAT(activity, HasSubstr("7 to encode"));
  EXPECT_EQ(PathLines(status),  // nothing went through shared memory
            "grpc      out 2.0 MiB in 8 answers (p50 1.2 ms, p99 250 ms), in 0 B in 0 pages, 1 "
            "failures\n");
  const std::string counters = CounterTable(status);
  EXPECT_THAT(counters, HasSubstr("pagoda_lookup_requests_total   12,345\n"));
  EXPECT_THAT(counters, HasSubstr("2.0 KiB"));
}

TEST(StatusViewTest, NothingIsShownOfNothing) {
  const v1::StatusResponse status;
  EXPECT_THAT(TierTable(status), Not(HasSubstr("absent")));
  EXPECT_EQ(CounterTable(status), "");
}

TEST(StatusViewTest, Json) {
  const Json json = StatusJson(SampleStatus());
  for (const char* key : {"version",
                          "instance_id",
                          "uptime_seconds",
                          "state",
                          "listen",
                          "data_dir",
                          "tiers",
                          "paths",
                          "pages",
                          "sessions",
                          "sequences",
                          "leases",
                          "leased_pages",
                          "staged_pages",
                          "staged_bytes",
                          "pinned_pages",
                          "persist_queue_pages",
                          "unflushed_pages",
                          "encode_queue_pages",
                          "counters"}) {
    EXPECT_TRUE(json.contains(key)) << key;
    EXPECT_NE(std::string(kStatusJsonKeys).find(key), std::string::npos) << key;
  }
  EXPECT_EQ(json["tiers"][0]["tier"], "hbm");
  EXPECT_EQ(json["tiers"][0]["present"], false);
  EXPECT_EQ(json["tiers"][1]["pages_by_precision"]["raw16"], 1230);
  EXPECT_EQ(json["paths"][1]["fetch_p99_seconds"], 0.25);
  EXPECT_EQ(json["counters"]["pagoda_put_bytes_total"], 2048);
}

TEST(CounterRatesTest, RatesComeFromTwoLooksAtOneInstance) {
  CounterRates rates;
  v1::StatusResponse status;
  status.set_instance_id("one");
  (*status.mutable_counters())["a"] = 10;
  (*status.mutable_counters())["b"] = 10;
  EXPECT_EQ(rates.Update(status, absl::Seconds(100))[0].per_second, 0);
  (*status.mutable_counters())["b"] = 40;
  (*status.mutable_counters())["c"] = 99;  // new: no look before
  const std::vector<CounterRate> second = rates.Update(status, absl::Seconds(102));
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0].name, "b");
  EXPECT_EQ(second[0].per_second, 15);
  EXPECT_EQ(second[0].total, 40u);
  EXPECT_EQ(second[1].name, "a");
  EXPECT_EQ(second[1].per_second, 0);
  EXPECT_EQ(second[2].per_second, 0);

  status.set_instance_id("two");  // restarted: counters began again
  (*status.mutable_counters())["b"] = 100;
  for (const CounterRate& rate : rates.Update(status, absl::Seconds(103))) {
    EXPECT_EQ(rate.per_second, 0) << rate.name;
  }
}

class ChooseModelTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, char first_byte) {
    v1::ModelStatus model;
    model.set_model(name);
    model.set_identity(std::string(1, first_byte) + std::string(31, '\x11'));
    models_.push_back(model);
  }
  std::vector<v1::ModelStatus> models_;
};

TEST_F(ChooseModelTest, ByNameByIdentityOrAll) {
  Add("smol", '\xab');
  Add("", '\xcd');
  EXPECT_EQ(*ChooseModel("all", models_), "");
  EXPECT_EQ(*ChooseModel("smol", models_), models_[0].identity());
  EXPECT_EQ(*ChooseModel("ab1111", models_), models_[0].identity());
  EXPECT_EQ(*ChooseModel("CD1111", models_), models_[1].identity());
  EXPECT_EQ(*ChooseModel("all", {}), "");
}

TEST_F(ChooseModelTest, WhatCannotBeMeant) {
  EXPECT_THAT(ChooseModel("smol", models_), StatusIs(absl::StatusCode::kNotFound, "knows none"));
  Add("smol", '\xab');
  EXPECT_THAT(ChooseModel("Smol", models_), StatusIs(absl::StatusCode::kNotFound, "knows smol"));
  EXPECT_THAT(ChooseModel("ab111", models_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ChooseModel("", models_), StatusIs(absl::StatusCode::kNotFound));
  Add("smol", '\xac');
  EXPECT_THAT(ChooseModel("smol", models_),
              StatusIs(absl::StatusCode::kInvalidArgument, "ab1111111111, ac1111111111"));
}

}  // namespace
}  // namespace pagoda::cli
