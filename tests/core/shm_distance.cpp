// SPDX-License-Identifier: MIT
// Whether other ranks' caches are far, from the time that reading their lines takes.
#include "shm/distance.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace {

using sheaf::readers;
using sheaf::shm::distance;
using namespace std::chrono_literals;

TEST(shm_distance, is_near_until_measured) { EXPECT_EQ(distance(3).others(), readers::near); }

TEST(shm_distance, one_far_rank_is_enough) {
  distance from(4);
  from.learn(1, 1, 30ns);
  EXPECT_EQ(from.others(), readers::near);
  from.learn(2, 1, 250ns);
  from.learn(3, 1, 40ns);
  EXPECT_EQ(from.others(), readers::far);
}

TEST(shm_distance, ranks_come_and_go) {
  distance from(3);
  for (const std::uint64_t turn : {1, 3, 5}) {
    from.learn(1, turn, 250ns);
    from.learn(2, turn, 250ns);
    EXPECT_EQ(from.others(), readers::far);
    from.learn(1, turn + 1, 30ns);
    EXPECT_EQ(from.others(), readers::far);
    from.learn(2, turn + 1, 30ns);
    EXPECT_EQ(from.others(), readers::near);
  }
}

TEST(shm_distance, lines_read_before_say_nothing) {
  distance from(2);
  from.learn(1, 1, 250ns);
  from.learn(1, 1, 20ns);
  EXPECT_EQ(from.others(), readers::far);
}

TEST(shm_distance, marks_carry_a_number) {
  const auto lines = std::make_unique<sheaf::shm::marks>();
  distance writer(2), reader(2);
  for (const std::uint64_t number : {1, 2}) {
    writer.leave(*lines);
    for (const auto& one : *lines) EXPECT_EQ(one.word.load(), number);
  }
  reader.measure(0, *lines);
  const auto found = reader.others();
  for (const auto other : {10ns, 250ns}) reader.learn(0, 2, other);  // the number that measure() has read
  EXPECT_EQ(reader.others(), found);
}

}  // namespace
