// SPDX-License-Identifier: MIT
#include "core/parallel.hpp"

#include <atomic>

namespace sheaf {
namespace {

// Two words, each installed once for the life of the process.
std::atomic<int (*)()> count{nullptr};
std::atomic<void (*)(std::int64_t, void*, parallel_body)> run{nullptr};

}  // namespace

void use_threads(parallel_threads with) {
  count = with.count;
  run = with.run;
}

int thread_count() {
  const auto ask = count.load(std::memory_order_relaxed);
  return ask ? ask() : 1;
}

void run_parallel(std::int64_t parts, void* context, parallel_body body) {
  const auto threads = run.load(std::memory_order_relaxed);
  if (threads && parts > 1) return threads(parts, context, body);
  for (std::int64_t part = 0; part < parts; ++part) body(context, part);
}

}  // namespace sheaf
