// Goal: the daemon is told a ticket once all before it are finished, never earlier, in rising
// order. Method: a few orders by hand, then seeded ones against the definition.
#include "client/device_tickets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace pagoda::client {
namespace {

TEST(DeviceTicketsTest, InOrderEachIsTold) {
  DeviceTickets tickets;
  for (uint64_t ticket : {4, 9, 11}) tickets.Open(ticket);
  EXPECT_EQ(tickets.Finish(4), 4u);
  EXPECT_EQ(tickets.Finish(9), 9u);
  EXPECT_EQ(tickets.Finish(11), 11u);
  EXPECT_EQ(tickets.Finish(11), std::nullopt);
}

TEST(DeviceTicketsTest, TheFirstOneHoldsBackTheRest) {
  DeviceTickets tickets;
  for (uint64_t ticket : {4, 9, 11}) tickets.Open(ticket);
  EXPECT_EQ(tickets.Finish(9), std::nullopt);
  EXPECT_EQ(tickets.Finish(4), 9u);
  tickets.Open(12);
  EXPECT_EQ(tickets.Finish(12), std::nullopt);
  EXPECT_EQ(tickets.Finish(11), 12u);
}

TEST(DeviceTicketsTest, AnyOrder) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    DeviceTickets tickets;
    std::vector<uint64_t> open;
    for (uint64_t ticket = 1; ticket <= 40; ++ticket) {
      tickets.Open(ticket);
      open.push_back(ticket);
    }
    uint64_t told = 0;
    std::shuffle(open.begin(), open.end(), random);
    while (!open.empty()) {
      const auto last = tickets.Finish(open.back());
      open.pop_back();
      const uint64_t first_open = open.empty() ? 41 : *std::min_element(open.begin(), open.end());
      if (last.has_value()) {
        EXPECT_GT(*last, told) << "seed " << seed;
        told = *last;
      }
      EXPECT_EQ(told, first_open - 1) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace pagoda::client
