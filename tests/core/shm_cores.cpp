// SPDX-License-Identifier: MIT
// Whether every rank has a core, as far as ranks can tell.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sheaf::shm
