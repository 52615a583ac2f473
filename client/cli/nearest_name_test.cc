// Goal: a slip of the finger is named, an unrelated word is not. Method: known distances.
#include "client/cli/nearest_name.h"

#include <gtest/gtest.h>

namespace pagoda::cli {
namespace {

TEST(NearestNameTest, Distances) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("sttaus", "status"), 1);  // a swap is one edit
  EXPECT_EQ(EditDistance("--demon", "--daemon"), 1);
}

TEST(NearestNameTest, NearestWithinAThird) {
  const std::vector<std::string> names = {"status", "top", "models", "pages", "pin", "unpin"};
  EXPECT_EQ(NearestName("statsu", names), "status");
  EXPECT_EQ(NearestName("model", names), "models");
  EXPECT_EQ(NearestName("pni", names), "pin");
  EXPECT_EQ(NearestName("evict", names), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace pagoda::cli
