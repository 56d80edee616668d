// SPDX-License-Identifier: MIT
// Three threads for the work of every rank, as torch has its own, as long as this lives.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "core/parallel.hpp"

namespace sheaf::test {

class three_threads {
 public:
  three_threads() {
    jobs() = 0;
    use_threads({[] { return 3; }, run});
  }
  ~three_threads() { use_threads({}); }
  three_threads(const three_threads&) = delete;
  three_threads& operator=(const three_threads&) = delete;

  // How often work was shared out.
  static std::atomic<int>& jobs() {
    static std::atomic<int> count{0};
    return count;
  }

 private:
  static void run(std::int64_t parts, void* context, parallel_body body) {
    ++jobs();
    std::vector<std::jthread> others;
    for (std::int64_t part = 1; part < parts; ++part) others.emplace_back(body, context, part);
    body(context, 0);
  }
};

}  // namespace sheaf::test
