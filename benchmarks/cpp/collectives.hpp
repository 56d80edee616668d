// SPDX-License-Identifier: MIT
// The collectives that are measured, one file each, and the bound that both are held against.
#pragma once

#include <cstring>
#include <memory>

#include "core/engine.hpp"
#include "timing.hpp"

namespace bench {

// `calls` inputs lie ready at a time.
struct setting {
  ranks& all;
  sheaf::engine& engine;
  sheaf::layout at;
  int calls;
};
std::unique_ptr<collective> make_all_gather(const setting& of);
std::unique_ptr<collective> make_reduce_scatter(const setting& of);

// No communication: one thread of every rank copies N bytes, all ranks at once, into memory that is warm.
class plain_copy final : public candidate {
 public:
  plain_copy(sheaf::memory from, sheaf::memory to) : candidate("memcpy"), from_(std::move(from)), to_(std::move(to)) {}
  void call(int) override { std::memcpy(to_.data, from_.data, to_.size); }
  std::span<const std::byte> result(int) const override { return {to_.data, to_.size}; }
  bool has_rank_data() const override { return false; }

 private:
  const sheaf::memory from_;
  const sheaf::memory to_;
};

// Sheaf makes the results, one per call.
class with_results : public candidate {
 public:
  with_results(std::string name, int calls) : candidate(std::move(name)), results_(calls) {}
  void call(int number) final { results_[number] = make(number); }
  std::span<const std::byte> result(int number) const final { return {results_[number].data, results_[number].size}; }
  void release() final {
    for (auto& one : results_) one = {};
  }

 private:
  virtual sheaf::memory make(int number) = 0;

  std::vector<sheaf::memory> results_;
};

// Warm: every page has been written.
inline sheaf::memory allocate_warm(std::size_t bytes) {
  auto made = sheaf::allocate(bytes);
  std::memset(made.data, 1, made.size);
  return made;
}

// Part `number` of memory that holds one after the other.
inline sheaf::memory nth(const sheaf::memory& all, int number, std::int64_t bytes) {
  return all.slice(static_cast<std::size_t>(number * bytes), static_cast<std::size_t>(bytes));
}

}  // namespace bench
