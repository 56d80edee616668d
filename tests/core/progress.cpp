// SPDX-License-Identifier: MIT
// The order of calls that several threads make, and the thread that carries started ones on.
#include "core/progress.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <sheaf/error.hpp>
#include <thread>

#include "core/interrupt.hpp"
#include "core/turns.hpp"

namespace sheaf {
namespace {

using namespace std::chrono_literals;

constexpr auto long_enough = 20s;  // a deadline, never waited for in full

TEST(turns, come_in_the_order_of_numbers_whoever_asks_first) {
  turns all;
  std::vector<call> calls(4);
  for (auto& one : calls) all.number(one);
  std::vector<std::uint64_t> order;
  std::vector<std::thread> threads;
  for (auto one = calls.rbegin(); one != calls.rend(); ++one) {
    threads.emplace_back([&all, &order, &now = *one] {
      all.take(now);
      order.push_back(now.head.sequence);  // one at a time
      all.end(now);
    });
  }
  for (auto& one : threads) one.join();
  EXPECT_EQ(order, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

// Call 2 is interrupted before its turn; 3 comes after 1 all the same, and what is over is told in order.
TEST(turns, pass_by_a_call_that_was_interrupted) {
  std::vector<std::uint64_t> told;
  turns all([&](std::uint64_t last) { told.push_back(last); });
  call first, second, third;
  for (auto* one : {&first, &second, &third}) all.number(*one);
  all.take(first);
  std::thread([&] {
    const asked_here question([] { throw interrupted("enough"); });
    EXPECT_THROW(all.take(second), interrupted);
  }).join();
  EXPECT_TRUE(told.empty()) << "call 1 is not over";
  all.end(first);
  all.take(third);
  all.end(third);
  EXPECT_EQ(told, (std::vector<std::uint64_t>{2, 3}));
}

// Two calls that follow call 1 are given up while it has its turn: 4 comes after it, and nobody waits for them.
TEST(turns, pass_by_calls_that_are_skipped) {
  std::vector<std::uint64_t> told;
  turns all([&](std::uint64_t last) { told.push_back(last); });
  call first, fourth;
  all.number(first);
  all.take(first);
  all.skip(2);
  EXPECT_TRUE(told.empty()) << "call 1 is not over";
  all.end(first);
  all.number(fourth);
  EXPECT_EQ(fourth.head.sequence, 4u);
  all.take(fourth);
  all.skip(1);
  all.end(fourth);
  EXPECT_EQ(told, (std::vector<std::uint64_t>{3, 5}));
}

// The time of a call counts from its turn where the one before went well, and from its start where it did not.
TEST(turns, count_time_from_the_end_of_a_call_that_went_well) {
  for (const bool failed : {false, true}) {
    turns all;
    call before, after;
    all.number(before);
    all.number(after);
    const auto started = after.started;
    all.take(before);
    std::this_thread::sleep_for(30ms);  // longer than the tick by which calls may count from later
    before.failed = failed;
    all.end(before);
    all.take(after);
    EXPECT_EQ(after.started > started, !failed);
  }
}

TEST(progress, runs_in_order_and_returns_at_once) {
  const auto line = std::make_shared<progress>();
  std::promise<void> go;
  std::vector<int> order;
  std::promise<void> over;
  line->queue([&] { return [&] { go.get_future().wait_for(long_enough); }; });
  for (int number = 0; number < 5; ++number) {
    line->queue([&, number] { return [&, number] { order.push_back(number); }; });
  }
  line->queue([&] { return [&] { over.set_value(); }; });
  EXPECT_TRUE(line->is_busy());
  go.set_value();
  ASSERT_EQ(over.get_future().wait_for(long_enough), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

// What a job holds is dropped after it ran, and a line that rested for long runs again.
TEST(progress, drops_jobs_and_takes_new_ones) {
  const auto line = std::make_shared<progress>();
  for (int round = 0; round < 3; ++round) {
    std::promise<void> dropped;
    auto held = std::shared_ptr<void>(&dropped, [&](void*) { dropped.set_value(); });
    line->queue([&] { return [held = std::move(held)] {}; });
    ASSERT_EQ(dropped.get_future().wait_for(long_enough), std::future_status::ready);
    if (round == 1) std::this_thread::sleep_for(1200ms);  // its thread is gone by then
  }
}

TEST(progress, has_so_many_places) {
  const auto line = std::make_shared<progress>();
  std::vector<progress::place> places;
  for (int number = 0; number < progress::most; ++number) places.push_back(line->take_place());
  EXPECT_TRUE(places.back());
  EXPECT_FALSE(line->take_place());
  places.pop_back();
  EXPECT_TRUE(line->take_place());
}

// A number that was given is always followed by its job, however many threads start calls.
TEST(progress, queues_in_the_order_of_numbers) {
  const auto line = std::make_shared<progress>();
  turns all;
  std::vector<std::uint64_t> order;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int number = 0; number < 50; ++number) {
        line->queue([&] {
          call now;
          all.number(now);
          return [&, now]() mutable {
            all.take(now);
            order.push_back(now.head.sequence);
            all.end(now);
          };
        });
      }
    });
  }
  for (auto& one : threads) one.join();
  std::promise<void> over;
  line->queue([&] { return [&] { over.set_value(); }; });
  ASSERT_EQ(over.get_future().wait_for(long_enough), std::future_status::ready);
  ASSERT_EQ(order.size(), 200u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace sheaf
