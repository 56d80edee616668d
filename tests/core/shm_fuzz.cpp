// SPDX-License-Identifier: MIT
// Random calls: sizes, lifetimes, writes into results, ranks that fail and children that inherit, all from one seed.
// Every result is compared when it dies.
#include <gtest/gtest.h>

#include <cstring>
#include <list>

#include "core/shm_processes.hpp"

namespace sheaf::test {
namespace {

using word = std::uint64_t;

// Word i of what call number `sequence` gathers; in sums, what rank 0 brings.
word truth(std::uint64_t sequence, std::size_t i) {
  word mixed = (sequence << 32 | i) * 0x9E3779B97F4A7C15ull;
  return mixed ^ mixed >> 29;
}

struct fuzz_options {
  int calls;
  std::uint64_t seed;
  bool writes = false;  // ranks have views of their own
  int forks = 0;        // by each rank
};

// What a rank holds: word i of it should be factor · truth(sequence, places[i]), but for what it wrote.
struct holding {
  memory result;
  std::uint64_t sequence;
  std::vector<std::size_t> places;
  word factor;
  std::map<std::size_t, word> written;

  void check() const {
    const auto* words = reinterpret_cast<const word*>(result.data);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto found = written.find(i);
      const auto expected = found != written.end() ? found->second : factor * truth(sequence, places[i]);
      if (words[i] == expected) continue;
      throw std::runtime_error("call " + std::to_string(sequence) + ": word " + std::to_string(i) + " of " +
                               std::to_string(places.size()) + " is wrong");
    }
  }
};

class fuzzer {
 public:
  fuzzer(shm::engine& me, const fuzz_options& with)
      : me_(me), with_(with), common_(with.seed), own_(with.seed + 1 + me.rank()) {}

  void run() {
    for (int i = 0; i < with_.calls; ++i) {
      call_once();
      live_on();
      if (with_.forks > 0 && static_cast<int>(own_() % with_.calls) < 2 * with_.forks) fork_an_heir();
    }
    while (!held_.empty()) drop(held_.begin());
    for (auto& heir : heirs_) require(heir.wait() == 0, "an heir failed");
  }

 private:
  // Every rank draws the same call.
  void call_once() {
    extents sizes(me_.world());
    const auto scale = std::size_t{1} << common_() % 15;
    for (auto& size : sizes) size = common_() % 4 == 0 ? 0 : static_cast<std::int64_t>(common_() % scale);
    const auto outer = static_cast<std::int64_t>(common_() % 4 == 0 ? 2 : 1);
    const bool sums = common_() % 4 == 0;
    if (sums && common_() % 2 == 0) sizes[common_() % sizes.size()] += 40'000;  // shared out
    const int leaver = common_() % 40 == 0 ? static_cast<int>(common_() % sizes.size()) : -1;
    const auto at = make_layout(extents{outer, 1}, 1, sizes, sizeof(word));

    turn mine(me_, sums ? operation::reduce_scatter : operation::all_gather);
    mine.now.head.tensors[0].type = dtype::uint64;
    learn(me_, mine.now);
    holding next{me_.take_result(mine.now, at), mine.now.head.sequence, {}, 1, {}};
    if (leaver == me_.rank()) return;
    try {
      if (sums) {
        scatter(mine.now, at, next);
      } else {
        gather_into(mine.now, at, next);
      }
    } catch (const rank_error&) {
      if (leaver < 0) throw;
      return;
    }
    next.check();
    held_.push_back(std::move(next));
  }

  memory words(const std::vector<std::size_t>& places, std::uint64_t sequence, word factor) {
    auto made = allocate(places.size() * sizeof(word));
    auto* to = reinterpret_cast<word*>(made.data);
    for (std::size_t i = 0; i < places.size(); ++i) to[i] = factor * truth(sequence, places[i]);
    return made;
  }

  static std::vector<std::size_t> places_of(const layout& at, int rank) {
    std::vector<std::size_t> places;
    for (std::int64_t chunk = 0; chunk < at.outer; ++chunk) {
      const auto first = (chunk * at.chunk_bytes() + at.block_offset(rank)) / sizeof(word);
      for (std::size_t i = 0; i < at.block_chunk_bytes(rank) / sizeof(word); ++i) places.push_back(first + i);
    }
    return places;
  }

  static std::vector<std::size_t> all_places(const layout& at) {
    std::vector<std::size_t> places(at.bytes() / sizeof(word));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
    return places;
  }

  void gather_into(const call& now, const layout& at, holding& next) {
    next.places = all_places(at);
    me_.all_gather(now, at, words(places_of(at, me_.rank()), next.sequence, 1), next.result);
  }

  // Rank r brings r + 1 times the truth.
  void scatter(const call& now, const layout& at, holding& next) {
    next.places = places_of(at, me_.rank());
    next.factor = static_cast<word>(me_.world() * (me_.world() + 1) / 2);
    const auto whole = words(all_places(at), next.sequence, static_cast<word>(me_.rank() + 1));
    me_.reduce_scatter(now, at, reduction::sum, whole, next.result);
  }

  // Each rank by itself: writes to what it holds, and lets some of it go.
  void live_on() {
    for (auto one = held_.begin(); one != held_.end();) {
      if (with_.writes && own_() % 8 == 0) write_to(*one);
      const auto dying = one++;
      if (own_() % 4 == 0 || held_.size() > 6) drop(dying);
    }
  }

  void write_to(holding& one) {
    if (one.places.empty()) return;
    const auto first = own_() % one.places.size();
    const auto count = std::min<std::size_t>(own_() % 3 == 0 ? 2000 : 3, one.places.size() - first);
    for (std::size_t i = first; i < first + count; ++i) {
      one.written[i] = reinterpret_cast<word*>(one.result.data)[i] = own_();
    }
  }

  void drop(std::list<holding>::iterator dying) {
    dying->check();
    held_.erase(dying);
  }

  // A child that looks at its inheritance after a while, when the parent is calls ahead.
  void fork_an_heir() {
    if (heirs_.size() >= static_cast<std::size_t>(with_.forks)) return;
    const auto pause = std::chrono::milliseconds(own_() % 200);
    heirs_.emplace_back([&] {
      std::this_thread::sleep_for(pause);
      for (const auto& one : held_) one.check();
      held_.clear();
    });
  }

  shm::engine& me_;
  const fuzz_options with_;
  std::mt19937_64 common_;
  std::mt19937_64 own_;
  std::list<holding> held_;
  std::vector<child> heirs_;
};

void fuzz_threads(int world, views how, std::size_t pool_bytes) {
  shm_crew ranks(world, {.how = how, .pool_bytes = pool_bytes, .segment_bytes = 2 * mib});
  const auto errors = ranks.run([&](shm::engine& me) {
    fuzzer(me, {.calls = 400, .seed = 1000u * world + pool_bytes / mib, .writes = how == views::own}).run();
  });
  EXPECT_EQ(errors, no_errors(world));
}

TEST(shm_fuzz, threads_on_one_mapping) {
  fuzz_threads(2, views::none, 4 * mib);
  fuzz_threads(3, views::none, mib);
}

TEST(shm_fuzz, threads_with_views) {
  fuzz_threads(2, views::own, 4 * mib);
  fuzz_threads(3, views::own, mib);
}

TEST(forked_fuzz, two_processes) {
  const auto ends = run_processes(
      2, 8 * mib, [](shm::engine& me) { fuzzer(me, {.calls = 3000, .seed = 2, .writes = true, .forks = 5}).run(); });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

TEST(forked_fuzz, three_processes) {
  const auto ends = run_processes(
      3, 4 * mib, [](shm::engine& me) { fuzzer(me, {.calls = 2000, .seed = 3, .writes = true, .forks = 4}).run(); });
  EXPECT_EQ(ends, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace sheaf::test
