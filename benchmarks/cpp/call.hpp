// SPDX-License-Identifier: MIT
// One call of Sheaf's as the ops of src/torch make it, without torch: begin, learn, place, move, end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/engine.hpp"

namespace bench {

class call {
 public:
  // Of a float32 tensor [rows, width] along dim 0; `given` are the sizes, empty where they are learned.
  call(sheaf::engine& with, sheaf::operation op, std::int64_t rows, std::int64_t width,
       std::vector<std::int64_t> given = {});
  ~call();
  call(const call&) = delete;
  call& operator=(const call&) = delete;

  // A rank's payload is its `data`.
  const sheaf::heard& learn(const sheaf::payload& data);
  sheaf::layout place(std::vector<std::int64_t> sizes) const;
  bool is_inlined(std::int64_t bytes) const;
  // As torch has it: for data that came along with headers, and for the rest.
  sheaf::memory take_private(std::size_t bytes);
  sheaf::memory take_result(const sheaf::layout& at, std::size_t bytes);
  void all_gather(const sheaf::layout& at, const sheaf::memory& own, const sheaf::memory& result);
  void reduce_scatter(const sheaf::layout& at, const sheaf::memory& whole, const sheaf::memory& own);

 private:
  sheaf::engine& engine_;
  sheaf::call now_;
};

// What a rank brought along. Throws rank_error when that is another number of bytes.
std::span<const std::byte> inlined(const sheaf::heard& said, int rank, std::int64_t bytes);

}  // namespace bench
