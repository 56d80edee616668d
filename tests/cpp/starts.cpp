// SPDX-License-Identifier: MIT
// A start waits for no other rank: by the order of events, on ranks that are threads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <latch>
#include <sheaf/sheaf.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sheaf::test {
namespace {

using namespace std::chrono_literals;

void await(const std::latch& event) {
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (!event.try_wait()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("rank 0's start has not returned");
    std::this_thread::sleep_for(1ms);
  }
}

// Rank 1 starts only once rank 0's start has returned: had that waited for it, nobody would go on.
template <class Start>
void start_before_the_peer(const group& me, std::latch& returned, Start&& start) {
  if (me.rank() == 1) await(returned);
  const auto handle = start();
  if (me.rank() == 0) {
    EXPECT_FALSE(handle.done());
    returned.count_down();
  }
  handle.wait();
}

TEST(starts, wait_for_nobody) {
  std::deque<std::latch> returned;
  for (int call = 0; call < 8; ++call) returned.emplace_back(1);
  spawn(2, [&](const group& me) {
    all_gather(at::ones({1}), {.group = me});  // in a group's first call ranks meet
    auto next = returned.begin();
    for (const std::int64_t width : {3, 40'000}) {
      const auto x = at::ones({me.rank() + 1, width});
      const auto ids = at::arange(me.rank() + 1);
      const auto y = at::ones({3, width});
      const auto sizes = at::tensor(at::ArrayRef<std::int64_t>({1, 2}), at::kLong);
      start_before_the_peer(me, *next++, [&] { return all_gather_async(x, {.group = me, .timeout = 20s}); });
      start_before_the_peer(me, *next++, [&] { return reduce_scatter_async(y, sizes, {.group = me, .timeout = 20s}); });
      start_before_the_peer(me, *next++,
                            [&] { return all_gather_coalesced_async({x, ids}, {.group = me, .timeout = 20s}); });
      start_before_the_peer(
          me, *next++, [&] { return reduce_scatter_coalesced_async({y, y}, sizes, {.group = me, .timeout = 20s}); });
    }
  });
}

// Rank 0 ends the process while calls that it started wait for rank 1. Never returns.
[[noreturn]] void end_with_open_handles(int tell) {
  static std::vector<handle<gathered>> open;
  spawn(2, [&](const group& me) {
    all_gather(at::ones({1}), {.group = me});
    if (me.rank() == 1) std::this_thread::sleep_for(60s);
    for (int call = 0; call < 3; ++call) open.push_back(all_gather_async(at::ones({2}), {.group = me}));
    if (write(tell, "x", 1) == 1) std::exit(0);
  });
  _exit(1);
}

TEST(starts, the_end_of_a_process_waits_for_no_handle) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const auto child = fork();
  if (child == 0) end_with_open_handles(pipe_ends[1]);
  close(pipe_ends[1]);
  char heard = 0;
  ASSERT_EQ(read(pipe_ends[0], &heard, 1), 1);
  close(pipe_ends[0]);
  const auto since = std::chrono::steady_clock::now();
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - since > 20s) kill(child, SIGKILL);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - since, 1s);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace sheaf::test
