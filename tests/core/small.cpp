// SPDX-License-Identifier: MIT
// Small memory is used again by the thread that dropped it, and may be dropped by any.
#include "core/small.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace {

using namespace sheaf;

TEST(small, memory_is_aligned_and_nobody_elses) {
  std::vector<std::pair<void*, std::size_t>> taken;
  for (std::size_t bytes = 1; bytes <= small::most_bytes; bytes += 61) {
    auto* const data = small::take(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
    std::memset(data, static_cast<int>(bytes % 251), bytes);
    taken.emplace_back(data, bytes);
  }
  for (const auto& [data, bytes] : taken) {
    const std::vector<unsigned char> expected(bytes, static_cast<unsigned char>(bytes % 251));
    EXPECT_EQ(std::memcmp(data, expected.data(), bytes), 0) << bytes;
    small::give_back(data);
  }
}

TEST(small, what_was_dropped_is_used_again) {
  auto* const first = small::take(200);
  small::give_back(first);
  auto* const next = small::take(129);  // of the same class
  EXPECT_EQ(next, first);
  small::give_back(next);
}

TEST(small, any_thread_may_drop_it_and_no_more_is_kept_than_promised) {
  std::set<void*> taken;
  for (int i = 0; i < 100; ++i) taken.insert(small::take(small::most_bytes));
  EXPECT_EQ(taken.size(), 100u);
  std::thread([&] {
    for (auto* data : taken) small::give_back(data);
    int again = 0;
    std::vector<void*> more;
    for (int i = 0; i < 100; ++i) {
      more.push_back(small::take(small::most_bytes));
      again += taken.contains(more.back());
    }
    EXPECT_GE(again, 32) << "what this thread kept";
    for (auto* data : more) small::give_back(data);
  }).join();
}

// Made before what this thread keeps, and so destroyed after it.
struct last_user {
  std::vector<void*>* found = nullptr;
  ~last_user() {
    if (!found) return;
    for (int i = 0; i < 40; ++i) found->push_back(small::take(100));
    for (auto* data : *found) small::give_back(data);
  }
};

TEST(small, memory_comes_and_goes_when_the_threads_own_is_gone) {
  std::vector<void*> kept, late;
  std::thread([&] {
    thread_local last_user last;
    last.found = &late;
    for (int i = 0; i < 3; ++i) kept.push_back(small::take(100));
    for (auto* data : kept) small::give_back(data);
  }).join();
  EXPECT_EQ(std::set<void*>(late.begin(), late.end()).size(), 40u) << "no block twice";
}

}  // namespace
