// SPDX-License-Identifier: MIT
// What the end of a process waits for: errands that look around, and for a moment those that cannot.
#include "core/chore.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/shm_processes.hpp"

namespace sheaf::test {
namespace {

using clock = std::chrono::steady_clock;

TEST(chore, blind_waits_come_and_go_with_errands) {
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        const blind_wait of_no_errand;
        const errand work;
        const blind_wait outer;
        const blind_wait inner;
        if (work && !is_ending()) ++done;
      }
    });
  }
  for (auto& one : threads) one.join();
  EXPECT_EQ(done, 4000);
}

// A process that ends while a thread of its is in `body`, which never returns by itself; how it ended.
int end_amid(const std::function<void()>& body) {
  child other([&] {
    std::atexit([] { std::this_thread::sleep_for(1200ms); });  // after all that the end waits for
    end_chores_at_exit();
    std::atomic<bool> begun{false};
    std::thread([&] {
      const errand work;
      begun = true;
      body();
    }).detach();
    while (!begun) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    std::exit(0);
  });
  return other.wait();
}

void wait_for_the_end() {
  while (!is_ending()) std::this_thread::sleep_for(1ms);
}

// It would touch what is gone by then.
TEST(forked_chore, a_blind_wait_that_is_done_after_the_end_never_returns) {
  EXPECT_EQ(end_amid([] {
              {
                const blind_wait wait;
                wait_for_the_end();
                std::this_thread::sleep_for(700ms);
              }
              std::_Exit(7);
            }),
            0);
}

TEST(forked_chore, a_blind_wait_that_is_done_in_time_returns) {
  EXPECT_EQ(end_amid([] {
              {
                const blind_wait wait;
                wait_for_the_end();
              }
              std::_Exit(7);
            }),
            7);
}

TEST(forked_chore, the_end_is_not_held_up_by_what_cannot_see_it) {
  const auto start = clock::now();
  EXPECT_EQ(end_amid([] {
              const blind_wait wait;
              for (;;) ::pause();
            }),
            0);
  EXPECT_LT(clock::now() - start, 10s);
}

}  // namespace
}  // namespace sheaf::test
