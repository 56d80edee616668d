// SPDX-License-Identifier: MIT
// What is measured: result sizes and how their rows lie on the ranks, as in the Python harness.
#pragma once

#include <cstdint>
#include <sheaf/layout.hpp>
#include <string>
#include <vector>

namespace bench {

struct one_case {
  std::string collective;  // "all_gather" or "reduce_scatter"
  std::int64_t bytes = 0;  // N: of the gathered tensor
  std::string skew;        // "even", "2" or "one-heavy"
};

// float32, along dim 0.
sheaf::layout layout_of(const one_case& one, int world);
std::int64_t row_bytes(std::int64_t bytes);

struct options {
  std::vector<std::string> collectives{"all_gather", "reduce_scatter"};
  std::vector<std::string> skews{"even", "2", "one-heavy"};
  std::vector<std::int64_t> bytes{256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20};
  double seconds = 1.0;  // that a case may take, checks included, within the bounds of its rounds
  int calls = 8;         // in a row, in a round, where N is small
  std::string json;      // where to write all numbers; empty: nowhere
};
// Throws invalid_argument, which names the argument and what is allowed.
options options_from(const std::vector<std::string>& arguments);
std::vector<one_case> cases_of(const options& with, int world);

}  // namespace bench
