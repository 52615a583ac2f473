// main() of every test. Exit code 77 when tests were selected but none ran (all skipped), so that
// ctest shows Skipped; plain gtest would exit 0.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (result != 0) return result;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  const int ran = all.test_to_run_count() - all.skipped_test_count();
  return all.skipped_test_count() > 0 && ran == 0 ? 77 : 0;
}
