// SPDX-License-Identifier: MIT
// Whether every rank has a core, as far as ranks can tell.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "shm/cores.hpp"

namespace sheaf::shm {
namespace {

TEST(shm_cores, are_enough_where_there_are_as_many_as_ranks) {
  EXPECT_TRUE(seats(2, 2).are_enough());
  EXPECT_FALSE(seats(3, 2).are_enough());
}

TEST(shm_cores, are_enough_for_ranks_bound_to_one_each) {
  seats of(3, 1);
  of.take(0, 4);
  of.take(1, 5);
  EXPECT_FALSE(of.are_enough()) << "nobody saw the last rank yet";
  of.take(2, 6);
  EXPECT_TRUE(of.are_enough());
  of.take(2, 4);
  EXPECT_FALSE(of.are_enough()) << "two ranks on one core";
  of.take(0, 7);
  EXPECT_TRUE(of.are_enough());
  EXPECT_EQ(of.of(0), 7);
}

TEST(shm_cores, are_not_enough_where_nobody_knows_them) {
  seats of(2, 1);
  of.take(0, -1);
  of.take(1, 3);
  EXPECT_FALSE(of.are_enough());
}

seats seats_on(const std::vector<int>& cores) {
  seats of(static_cast<int>(cores.size()), 2);
  for (int rank = 0; rank < static_cast<int>(cores.size()); ++rank) of.take(rank, cores[rank]);
  return of;
}

// What all ranks do by their own reckoning leaves no core with two more than another.
TEST(shm_cores, ranks_lie_evenly_once_each_has_gone_where_it_says) {
  const std::vector<std::vector<int>> starts{{0, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 1, 1}, {1, 0, 1, 1, 1},
                                             {2, 2, 2},    {0, 7, 7, 7}, {7, 7, 7, 7}, {-1, 0, 0, 0}};
  for (const auto& cores : {std::vector{0, 1}, std::vector{0, 1, 2}}) {
    for (const auto& start : starts) {
      const auto of = seats_on(start);
      std::vector<int> after, counts(8);
      for (int rank = 0; rank < static_cast<int>(start.size()); ++rank) {
        after.push_back(of.even_one(rank, cores).value_or(start[rank]));
        if (after.back() >= 0) ++counts[after.back()];
      }
      const auto [least, most] = std::ranges::minmax_element(cores, {}, [&](int core) { return counts[core]; });
      EXPECT_LE(counts[*most] - counts[*least], 1) << testing::PrintToString(start);
      EXPECT_EQ(std::ranges::count(after, 7), std::ranges::count(start, 7)) << "a core that is not theirs";
    }
  }
  EXPECT_EQ(seats_on({0, 0, 1, 1}).even_one(3, {0, 1}), std::nullopt) << "nobody moves without need";
  EXPECT_EQ(seats_on({0, 0, 0, 1}).even_one(2, {0, 1}), 1);
  EXPECT_EQ(seats_on({0, 0, 0, 1}).even_one(0, {0, 1}), std::nullopt);
  EXPECT_EQ(seats_on({0, 0, 0}).even_one(2, {}), std::nullopt);
}

TEST(shm_cores, a_free_one_is_nobodys_else) {
  EXPECT_EQ(seats_on({0, 0, 2}).free_one(1, {0, 1, 2}), 1);
  EXPECT_EQ(seats_on({0, 1}).free_one(1, {0, 1}), 1) << "the own one is free to it";
  EXPECT_EQ(seats_on({0, 1}).free_one(0, {1}), std::nullopt);
}

TEST(shm_cores, a_thread_goes_where_it_is_told_and_may_go_on_from_there) {
  const auto before = own_cores();
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(core_count(), static_cast<int>(before.size()));
  move_to(before.back());
  EXPECT_EQ(own_cores(), before);
}

}  // namespace
}  // namespace sheaf::shm
