// Goal: the plan names every row once, raw16 first, with what it reads; rows that need a profile or
// a cache are there only with one. Method: plans made by hand.
#include "client/lab/ablation.h"

#include <gtest/gtest.h>

#include <set>

namespace pagoda::lab {
namespace {

std::vector<std::string> Names(const AblationPlan& plan) {
  std::vector<std::string> names;
  for (const AblationRow& row : AblationRows(plan)) names.push_back(row.name);
  return names;
}

const AblationRow& Find(const std::vector<AblationRow>& rows, const std::string& name) {
  for (const AblationRow& row : rows) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return rows[0];
}

TEST(Ablation, Rows) {
  const AblationPlan plan = {.k_lo_layers = {1, 2}, .grid_windows = {0, 128, 512}};
  EXPECT_EQ(Names(plan), (std::vector<std::string>{"raw16", "q8", "q4", "q3", "q2", "ladder",
                                                   "profile", "composite", "shared", "all", "q8 w0",
                                                   "q8 w512", "q4 w0", "q4 w512"}));
  const std::vector<AblationRow> rows = AblationRows(plan);
  EXPECT_EQ(Find(rows, "ladder").kv.q8_tokens, 1024);
  EXPECT_TRUE(Find(rows, "ladder").kv.k_lo_layers.empty());
  EXPECT_EQ(Find(rows, "profile").kv.k_lo_layers, plan.k_lo_layers);
  EXPECT_EQ(Find(rows, "profile").kv.q8_tokens, 0);
  EXPECT_EQ(Find(rows, "composite").kv.precision, Precision::kQ2);
  EXPECT_EQ(Find(rows, "composite").kv.window_tokens, 1024);
  EXPECT_TRUE(Find(rows, "shared").shared_prefix);
  EXPECT_TRUE(Find(rows, "all").shared_prefix);
  EXPECT_EQ(Find(rows, "all").kv.q8_tokens, 1024);
  EXPECT_EQ(Find(rows, "all").kv.k_lo_layers, plan.k_lo_layers);
  EXPECT_EQ(Find(rows, "q8 w512").kv.window_tokens, 512);
  EXPECT_EQ(Find(rows, "q8 w512").kv.precision, Precision::kQ8);
}

TEST(Ablation, RowsThatNothingAsksForAreLeftOut) {
  EXPECT_EQ(Names({.q8_tokens = 128, .shared_prefix = false, .grid_windows = {128}}),
            (std::vector<std::string>{"raw16", "q8", "q4", "q3", "q2"}));
  EXPECT_EQ(Names({.shared_prefix = false, .grid_windows = {64, 64}}),
            (std::vector<std::string>{"raw16", "q8", "q4", "q3", "q2", "ladder", "composite",
                                      "q8 w64", "q4 w64"}));
  const std::vector<std::string> names = Names({});
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

}  // namespace
}  // namespace pagoda::lab
