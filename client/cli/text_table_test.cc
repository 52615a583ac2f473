// Goal: tables line up whatever the cells are. Method: exact texts.
#include "client/cli/text_table.h"

#include <gtest/gtest.h>

namespace pagoda::cli {
namespace {

TEST(TextTableTest, ColumnsAreAsWideAsTheirWidestCell) {
  TextTable table({{"tier"}, {"pages", Align::kRight}});
  EXPECT_TRUE(table.empty());
  table.AddRow({"host", "7"});
  table.AddRow({"a longer one", "1,234,567"});
  EXPECT_EQ(table.Render(),
            "tier              pages\n"
            "------------  ---------\n"
            "host                  7\n"
            "a longer one  1,234,567\n");
}

TEST(TextTableTest, NoRowsGiveTheHeadAlone) {
  EXPECT_EQ(TextTable({{"a"}, {"bc"}}).Render(), "a  bc\n-  --\n");
}

TEST(TextTableTest, RowsOneByOneKeepTheirWidths) {
  const TextTable table({{"run", Align::kLeft, 6}, {"ms", Align::kRight, 5}, {"note"}});
  EXPECT_EQ(table.Head(), "run        ms  note\n------  -----  ----\n");
  EXPECT_EQ(table.Row(std::vector<std::string>{"cold", "12.5", ""}), "cold     12.5\n");
  EXPECT_EQ(table.Row(std::vector<std::string>{"too long", "1", "x"}), "too long      1  x\n");
}

TEST(TextTableTest, WidthsCountCharactersNotBytes) {
  EXPECT_EQ(DisplayWidth("caf\xc3\xa9"), 4u);
  TextTable table({{"a"}, {"b"}});
  table.AddRow({"caf\xc3\xa9", "x"});
  table.AddRow({"four", "y"});
  EXPECT_EQ(table.Render(), "a     b\n----  -\ncaf\xc3\xa9  x\nfour  y\n");
}

TEST(TextTableDeathTest, ARowOfAnotherLengthIsAFaultOfTheCaller) {
  TextTable table({{"a"}, {"b"}});
  EXPECT_DEATH(table.AddRow({"only one"}), "cells.size");
}

TEST(WrapTextTest, BreaksAtSpacesAndKeepsLongWords) {
  EXPECT_EQ(WrapText("", 10, "> "), "");
  EXPECT_EQ(WrapText(" \n ", 10, "> "), "");
  EXPECT_EQ(WrapText("one two", 7, "> "), "> one two\n");
  EXPECT_EQ(WrapText("one two", 6, "> "), "> one\n> two\n");
  EXPECT_EQ(WrapText("one\n\ntwo\tthree", 20, ""), "one two three\n");
  EXPECT_EQ(WrapText("a incomprehensible b", 5, "| "), "| a\n| incomprehensible\n| b\n");
}

}  // namespace
}  // namespace pagoda::cli
