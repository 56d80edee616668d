// SPDX-License-Identifier: MIT
// Ranks as processes: lives and deaths, private results, children that inherit results.
#include <gtest/gtest.h>

#include <cstring>

#include "core/shm_processes.hpp"

namespace sheaf::test {
namespace {

using clock = std::chrono::steady_clock;

bool comes_true(const std::function<bool()>& condition) {
  const auto until = clock::now() + 20s;
  while (!condition()) {
    if (clock::now() >= until) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

void sleep_for_ever() {
  for (;;) ::pause();
}

TEST(forked_life, a_killed_process_is_seen_before_and_after_it_is_reaped) {
  child other(sleep_for_ever);
  const shm::life its(other.process());
  const auto name = std::to_string(other.process());
  EXPECT_EQ(its.ended(), std::nullopt);
  ::kill(other.process(), SIGKILL);
  EXPECT_TRUE(comes_true([&] { return its.ended().has_value(); }));
  EXPECT_EQ(its.ended(), "its process " + name + " is ending");
  const auto process = other.process();
  EXPECT_EQ(other.wait(), 128 + SIGKILL);
  EXPECT_EQ(its.ended(), "its process " + name + " has ended");
  EXPECT_FALSE(its.is_stopped());
  EXPECT_THROW(shm::life{process}, std::runtime_error);
}

TEST(forked_life, a_stopped_process_is_seen) {
  child other(sleep_for_ever);
  const shm::life its(other.process());
  EXPECT_FALSE(its.is_stopped());
  ::kill(other.process(), SIGSTOP);
  EXPECT_TRUE(comes_true([&] { return its.is_stopped(); }));
  EXPECT_EQ(its.ended(), std::nullopt);
  ::kill(other.process(), SIGCONT);
  EXPECT_TRUE(comes_true([&] { return !its.is_stopped(); }));
}

const layout pages_64 = make_layout(extents{1, 1}, 0, extents{100'000, 64 * 4096 - 100'000}, 1);

TEST(forked_ranks, gather_and_write) {
  const auto ends = run_processes(2, 16 * mib, [](shm::engine& me) {
    const auto* before = static_cast<std::byte*>(nullptr);
    for (int round = 0; round < 50; ++round) {
      const auto whole = random_bytes(pages_64.bytes(), round);
      const auto result = gather(me, pages_64, whole);
      require(content(result) == whole, "a wrong result in round " + std::to_string(round));
      require(round == 0 || result.data == before, "another segment in round " + std::to_string(round));
      before = result.data;
      std::memset(result.data + 8192 * me.rank(), 0xEE, 4096);
    }
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

// Sums along any dim.
TEST(forked_ranks, sums_of_other_processes_memory) {
  const auto ends = run_processes(3, 2 * mib, [](shm::engine& me) {
    for (const std::int64_t outer : {1, 5}) {
      const auto at = make_layout(extents{outer, 1, 700}, 1, extents{30, 0, 200}, 4);
      turn mine(me, operation::reduce_scatter);
      learn(me, mine.now);
      const auto own = me.take_result(mine.now, at);
      const bytes whole(at.bytes(), static_cast<std::byte>(me.rank() + 1));
      me.reduce_scatter(mine.now, at, reduction::sum, copy_of(whole), own);
      require(content(own) == bytes(own.size, std::byte{6}), "another sum");
    }
  });
  EXPECT_EQ(ends, std::vector<int>(3, 0));
}

// Rank 1 forks with a result at hand. The segment is never used again, so the child sees it for as long as it likes.
TEST(forked_ranks, a_child_keeps_what_it_inherits) {
  const auto ends = run_processes(2, 16 * mib, [](shm::engine& me) {
    const auto whole = random_bytes(pages_64.bytes(), 1);
    auto result = gather(me, pages_64, whole);
    const auto* kept = result.data;
    int go[2];
    require(::pipe(go) == 0, "pipe");
    std::optional<child> heir;
    if (me.rank() == 1) {
      heir.emplace([&] {
        ::close(go[1]);
        char word = 0;
        require(::read(go[0], &word, 1) == 0, "the parent writes nothing, it only closes its end");
        require(content(result) == whole, "the child's result has changed");
        std::memset(result.data, 5, result.size);
        result = {};  // does not give the parent's segment back
      });
    }
    result = {};
    for (int round = 2; round < 10; ++round) {
      const auto other = random_bytes(pages_64.bytes(), round);
      const auto next = gather(me, pages_64, other);
      require(content(next) == other, "a wrong result");
      require(next.data != kept, "the child's segment is used again");
    }
    ::close(go[1]);
    require(!heir || heir->wait() == 0, "the child failed");
    const auto other = random_bytes(pages_64.bytes(), 10);
    require(gather(me, pages_64, other).data != kept, "the child's segment is used again");
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

// Rank 1 dies in the third call; the others hear of it long before their deadline.
TEST(forked_ranks, a_dead_rank_is_lost_at_once) {
  const auto ends = run_processes(3, 4 * mib, [](shm::engine& me) {
    const auto at = make_layout(extents{1}, 0, extents{100'000, 100'000, 1}, 1);
    const auto whole = random_bytes(at.bytes(), 1);
    for (int round = 0; round < 2; ++round) gather(me, at, whole);
    if (me.rank() == 1) ::kill(::getpid(), SIGKILL);
    const auto started = clock::now();
    try {
      gather(me, at, whole);
    } catch (const rank_error& error) {
      const std::string text = error.what();
      require(text.find("lost rank 1") != std::string::npos, text);
      require(clock::now() - started < 15s, "at the deadline");
      return;
    }
    throw std::runtime_error("nothing was thrown");
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

// Rank 2 owns nothing, so it is done, and ends, before rank 1 has brought what rank 0 waits for.
TEST(forked_ranks, one_that_ends_after_its_last_call_is_not_missed) {
  const auto ends = run_processes(3, 4 * mib, [](shm::engine& me) {
    const auto at = make_layout(extents{1}, 0, extents{100'000, 100'000, 0}, 1);
    turn mine(me, operation::reduce_scatter);
    learn(me, mine.now);
    if (me.rank() == 1) std::this_thread::sleep_for(600ms);
    const auto own = me.take_result(mine.now, at);
    me.reduce_scatter(mine.now, at, reduction::sum, copy_of(bytes(at.bytes(), std::byte{1})), own);
    require(content(own) == bytes(own.size, std::byte{3}), "a wrong sum");
  });
  EXPECT_EQ(ends, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace sheaf::test
