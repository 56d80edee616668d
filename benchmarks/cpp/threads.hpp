// SPDX-License-Identifier: MIT
// A rank's threads, as torch's intra-op threads are there for it elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/parallel.hpp"

namespace bench {

class thread_pool {
 public:
  explicit thread_pool(int threads);  // the caller's own is one of them
  ~thread_pool();
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }
  void run(std::int64_t parts, void* context, sheaf::parallel_body body);

 private:
  void work();
  void take_parts();

  std::int64_t parts_ = 0;
  void* context_ = nullptr;
  sheaf::parallel_body body_ = nullptr;  // null: the workers go
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint32_t> jobs_{0};
  std::atomic<std::uint32_t> busy_{0};
  std::vector<std::thread> workers_;
};

// Gives Sheaf that many threads for the rest of the process.
void install_threads(int count);

}  // namespace bench
