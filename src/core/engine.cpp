// SPDX-License-Identifier: MIT
#include "core/engine.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "core/progress.hpp"
#include "core/small.hpp"

namespace sheaf {
namespace {

constexpr std::align_val_t cache_line{64};

memory owned(void* data, std::size_t bytes, void (*drop)(void*)) {
  return {static_cast<std::byte*>(data), bytes, std::shared_ptr<void>(data, drop)};
}

}  // namespace

std::chrono::steady_clock::time_point about_now() {
  const auto read = [](auto* of) {
    timespec time{};
    of(CLOCK_MONOTONIC_COARSE, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  static const auto tick = read(&::clock_getres);
  return std::chrono::steady_clock::time_point(read(&::clock_gettime) + tick);
}

memory allocate(std::size_t bytes) {
  if (bytes <= small::most_bytes) return owned(small::take(bytes), bytes, small::give_back);
  return owned(::operator new(bytes, cache_line), bytes, [](void* data) { ::operator delete(data, cache_line); });
}

void payload::write_to(std::byte* to, readers next) const {
  if (write) return write(to);
  const auto own = wanted.value_or(part{bytes, 0});
  const auto copy = [&](std::size_t first, std::size_t end) {
    stream_or_copy(to + first, source.data() + first, static_cast<std::int64_t>(end - first), next);
  };
  copy(0, own.first);
  copy(own.first + own.bytes, bytes);
}

std::shared_ptr<const std::vector<std::byte>> payload::written(std::span<const std::int64_t> sizes) const {
  const auto own = std::make_shared<std::vector<std::byte>>(sizes.size_bytes() + bytes);
  std::ranges::copy(std::as_bytes(sizes), own->begin());
  if (bytes > 0) write_to(own->data() + sizes.size_bytes());
  return own;
}

std::shared_ptr<progress> engine::line() {
  const std::lock_guard lock(line_mutex_);
  // A child of fork has none of its parent's threads. What its parent left is not to be touched.
  if (line_ && line_->owner() != getpid()) new std::shared_ptr<progress>(std::move(line_));
  if (!line_) line_ = std::make_shared<progress>();
  return line_;
}

}  // namespace sheaf
