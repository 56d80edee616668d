// SPDX-License-Identifier: MIT
#include "threads.hpp"

namespace bench {

thread_pool::thread_pool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

thread_pool::~thread_pool() {
  body_ = nullptr;
  jobs_.fetch_add(1);
  jobs_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void thread_pool::take_parts() {
  for (auto part = next_++; part < parts_; part = next_++) body_(context_, part);
}

void thread_pool::work() {
  for (std::uint32_t seen = 0;; ++seen) {
    jobs_.wait(seen);
    if (!body_) return;
    take_parts();
    if (--busy_ == 0) busy_.notify_one();
  }
}

// Every worker takes part in every job, so that none can come late and find the next one half written.
void thread_pool::run(std::int64_t parts, void* context, sheaf::parallel_body body) {
  parts_ = parts;
  context_ = context;
  body_ = body;
  next_ = 0;
  busy_ = static_cast<std::uint32_t>(workers_.size());
  jobs_.fetch_add(1);
  jobs_.notify_all();
  take_parts();
  for (auto left = busy_.load(); left != 0; left = busy_.load()) busy_.wait(left);
}

namespace {

thread_pool* installed = nullptr;

}  // namespace

void install_threads(int count) {
  static thread_pool pool(count);
  installed = &pool;
  sheaf::use_threads(
      {[] { return installed->count(); },
       [](std::int64_t parts, void* context, sheaf::parallel_body body) { installed->run(parts, context, body); }});
}

}  // namespace bench
