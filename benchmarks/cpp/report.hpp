// SPDX-License-Identifier: MIT
// What a run found, as a table of text and as JSON.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "timing.hpp"

namespace bench {

struct run_of {
  std::string mpi;
  int world = 1;
  int cores = 1;
  int threads = 1;  // a rank
  std::vector<outcome> outcomes;
};

std::string size_text(std::int64_t bytes);  // "64 KiB"
void print_tables(std::ostream& out, const run_of& all);
void write_json(std::ostream& out, const run_of& all);

}  // namespace bench
