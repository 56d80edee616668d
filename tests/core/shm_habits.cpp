// SPDX-License-Identifier: MIT
// Which of two ways becomes a habit, by what they cost.
#include <gtest/gtest.h>

#include "shm/habits.hpp"

namespace {

using sheaf::readers;
using sheaf::shm::habits;
using sheaf::shm::movement;
using sheaf::shm::size_class;
using sheaf::shm::way_of;

constexpr std::int64_t mib = std::int64_t{1} << 20;
const int here = size_class(movement::sum, 64 * mib);

// Sums at these costs; how many of the last ones, as many as `counted`, went past the caches.
int far_sums(habits& of, int sums, int counted, double near, double far) {
  int found = 0;
  for (int i = 0; i < sums; ++i) {
    const auto way = way_of(of.now().next, here);
    if (i >= sums - counted) found += way == readers::far;
    of.learn(here, way, way == readers::far ? far : near);
  }
  return found;
}

readers untimed(const habits& of) { return way_of(of.now().best, here); }

TEST(shm_habits, begin_in_the_caches) {
  EXPECT_EQ(habits().now().next, 0U);
  EXPECT_EQ(habits().now().best, 0U);
}

TEST(shm_habits, the_faster_way_is_taken) {
  habits near, far;
  EXPECT_LE(far_sums(near, 200, 100, 1.0, 1.3), 4);
  EXPECT_EQ(untimed(near), readers::near);
  EXPECT_GE(far_sums(far, 200, 100, 2.0, 1.0), 96);
  EXPECT_EQ(untimed(far), readers::far);
}

TEST(shm_habits, the_other_way_is_tried_again) {
  habits of;
  EXPECT_GE(far_sums(of, 200, 100, 1.0, 1.3), 2);
}

TEST(shm_habits, what_is_not_timed_takes_no_part_in_trials) {
  habits of;
  for (int i = 0; i < 100; ++i) {
    far_sums(of, 1, 0, 1.0, 1.3);
    EXPECT_EQ(untimed(of), readers::near) << "after sum " << i;
  }
}

TEST(shm_habits, follow_what_changes) {
  habits of;
  for (int turn = 0; turn < 3; ++turn) {
    far_sums(of, 200, 0, 1.0, 1.3);
    EXPECT_GE(far_sums(of, 20, 15, 2.3, 1.0), 12) << "the way it went became slow: seen at once";
    far_sums(of, 200, 0, 2.3, 1.0);
    EXPECT_LE(far_sums(of, 60, 20, 1.0, 1.3), 6) << "the other became fast: seen at the next trial";
  }
}

TEST(shm_habits, equal_ways_stay_as_they_are) {
  habits of;
  EXPECT_LE(far_sums(of, 200, 100, 1.0, 0.97), 4);
}

TEST(shm_habits, one_slow_sum_changes_nothing_for_long) {
  habits of;
  far_sums(of, 100, 0, 1.0, 1.3);
  far_sums(of, 1, 0, 50.0, 50.0);
  EXPECT_LE(far_sums(of, 20, 20, 1.0, 1.3), 7);
  EXPECT_EQ(untimed(of), readers::near);
}

TEST(shm_habits, classes_have_their_own) {
  habits of;
  far_sums(of, 50, 0, 2.0, 1.0);
  EXPECT_EQ(of.now().best, std::uint64_t{1} << here);
  EXPECT_EQ(size_class(movement::sum, 96 * mib), here);
  for (const auto other : {size_class(movement::sum, 256 * mib), size_class(movement::sum, 16 * mib),
                           size_class(movement::narrow_sum, 64 * mib), size_class(movement::gather, 64 * mib)}) {
    EXPECT_NE(other, here);
  }
  for (const auto bytes : {std::int64_t{0}, std::int64_t{1} << 31, std::int64_t{1} << 62}) {
    for (const auto what : {movement::sum, movement::narrow_sum, movement::gather, movement::frame}) {
      EXPECT_GE(size_class(what, bytes), 0);
      EXPECT_LT(size_class(what, bytes), 64);
    }
  }
}

}  // namespace
