// SPDX-License-Identifier: MIT
// Which of two ways becomes a habit, by what they cost.
#include <gtest/gtest.h>

#include "shm/habits.hpp"

namespace {

using sheaf::readers;
using sheaf::shm::habits;

constexpr std::int64_t bytes = std::int64_t{64} << 20;

// Calls at these costs; how many of the last ones, as many as `counted`, went past the caches.
int far_calls(habits& of, int calls, int counted, double near, double far) {
  int found = 0;
  for (int i = 0; i < calls; ++i) {
    const auto way = habits::way_of(of.past_caches(), bytes);
    if (i >= calls - counted) found += way == readers::far;
    of.learn(bytes, way, way == readers::far ? far : near);
  }
  return found;
}

TEST(shm_habits, begins_in_the_caches) { EXPECT_EQ(habits().past_caches(), 0U); }

TEST(shm_habits, the_faster_way_is_taken) {
  habits near, far;
  EXPECT_LE(far_calls(near, 200, 100, 1.0, 1.3), 4);
  EXPECT_GE(far_calls(far, 200, 100, 2.0, 1.0), 96);
}

TEST(shm_habits, the_other_way_is_tried_again) {
  habits of;
  EXPECT_GE(far_calls(of, 200, 100, 1.0, 1.3), 2);
}

TEST(shm_habits, follows_what_changes) {
  habits of;
  for (int turn = 0; turn < 3; ++turn) {
    far_calls(of, 200, 0, 1.0, 1.3);
    EXPECT_GE(far_calls(of, 20, 15, 2.3, 1.0), 12) << "the way it went became slow: seen at once";
    far_calls(of, 200, 0, 2.3, 1.0);
    EXPECT_LE(far_calls(of, 60, 20, 1.0, 1.3), 6) << "the other became fast: seen at the next trial";
  }
}

TEST(shm_habits, equal_ways_stay_as_they_are) {
  habits of;
  EXPECT_LE(far_calls(of, 200, 100, 1.0, 0.97), 4);
}

TEST(shm_habits, one_slow_call_changes_nothing_for_long) {
  habits of;
  far_calls(of, 100, 0, 1.0, 1.3);
  far_calls(of, 1, 0, 50.0, 50.0);
  EXPECT_LE(far_calls(of, 40, 20, 1.0, 1.3), 4);
}

TEST(shm_habits, sizes_have_their_own) {
  habits of;
  far_calls(of, 50, 0, 2.0, 1.0);
  EXPECT_EQ(habits::way_of(of.past_caches(), bytes), readers::far);
  EXPECT_EQ(habits::way_of(of.past_caches(), bytes + bytes / 2), readers::far);
  EXPECT_EQ(habits::way_of(of.past_caches(), 4 * bytes), readers::near);
  EXPECT_EQ(habits::way_of(of.past_caches(), bytes / 4), readers::near);
}

}  // namespace
