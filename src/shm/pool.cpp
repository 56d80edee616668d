// SPDX-License-Identifier: MIT
#include "shm/pool.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <set>

#include "shm/written.hpp"

namespace sheaf::shm {
namespace {

// A result of which an eighth or more was written would have been cheaper in private memory; so will be the next ones.
constexpr std::size_t written_share = 8;
constexpr int private_results = 64;
// A segment that this many choices passed by goes back to the system.
constexpr std::uint64_t long_unused = 256;

constexpr int populate_read = 22;  // MADV_POPULATE_READ and _WRITE, Linux 5.14
constexpr int populate_write = 23;

int size_class(std::size_t bytes) { return std::bit_width(bytes) % 64; }

// Every pool of this process, for fork. Never destroyed: pools may be asked for while the process ends.
struct all_pools {
  std::mutex mutex;
  std::set<pool*> pools;
};

all_pools& everyone() {
  static auto* all = [] {
    pthread_atfork(
        [] {
          everyone().mutex.lock();
          for (auto* one : everyone().pools) one->lock_for_fork();
        },
        [] {
          for (auto* one : everyone().pools) one->unlock_after_fork(true);
          everyone().mutex.unlock();
        },
        [] {
          for (auto* one : everyone().pools) one->unlock_after_fork(false);
          everyone().mutex.unlock();
        });
    return new all_pools;
  }();
  return *all;
}

// The system says so here, where a page fault would kill the process.
void populate(std::byte* data, std::size_t bytes, int how) {
  const auto first = reinterpret_cast<std::uintptr_t>(data) / page_bytes() * page_bytes();
  const auto last = up_to_page(reinterpret_cast<std::uintptr_t>(data) + bytes);
  if (::madvise(reinterpret_cast<void*>(first), last - first, how) == 0 || errno == EINVAL) return;
  if (errno == ENOMEM || errno == EFAULT || errno == ENOSPC) throw std::bad_alloc();
}

}  // namespace

pool::pool(std::shared_ptr<arena> place, int rank, std::size_t limit)
    : place_(std::move(place)), rank_(rank), limit_(limit), process_(::getpid()) {
  const std::lock_guard lock(everyone().mutex);
  everyone().pools.insert(this);
}

pool::~pool() {
  const std::lock_guard lock(everyone().mutex);
  everyone().pools.erase(this);
}

void pool::mark(int segment, bool used) {
  const auto bit = std::uint64_t{1} << segment;
  used ? unused_.fetch_and(~bit) : unused_.fetch_or(bit);
}

void pool::write_resident(slot& to, std::uint64_t sequence) {
  auto& written = written_at_[sequence % ring_slots];
  if (written == uses_ + 1) return;  // nothing is counted anew but by a choice, which calls make in their turn
  written = uses_ + 1;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < segment_count; ++i) {
    to.resident_pages[i] = static_cast<std::uint32_t>(segments_[i].resident / page_bytes());
  }
}

std::optional<int> pool::choose(const census& all, std::size_t bytes) {
  const auto need = up_to_page(bytes) / page_bytes();
  if (bytes > place_->shape().segment_bytes) return std::nullopt;
  std::size_t taken = 0;
  int best = -1;
  const auto better = [&](int one) {
    if (best < 0) return true;
    const std::size_t has = all.resident[one], had = all.resident[best];
    return has >= need ? had < need || has < had : had < need && has > had;
  };
  for (int i = 0; i < segment_count; ++i) {
    if (!(all.unused >> i & 1)) {
      taken += all.resident[i];
    } else if (better(i)) {
      best = i;
    }
  }
  if (best < 0 || (taken + need) * page_bytes() > limit_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  auto& chosen = segments_[best];
  // Rank 0 may have given pages back.
  const auto resident = all.resident[best] * page_bytes();
  chosen.written_warm = std::min(chosen.written_warm, resident);
  chosen.read_warm = std::min(chosen.read_warm, resident);
  mark(best, true);
  chosen.bytes = bytes;
  chosen.resident = std::max(resident, up_to_page(bytes));
  chosen.last_use = ++uses_;
  if (rank_ == 0) trim(all, best);
  return best;
}

// Rank 0 alone, inside a call: nobody can choose a segment before rank 0's next frame.
void pool::trim(const census& all, int chosen) {
  std::size_t total = 0;
  for (const auto& one : segments_) total += one.resident;
  for (int i = 0; i < segment_count; ++i) {
    auto& one = segments_[i];
    const bool idle = i != chosen && (all.unused >> i & 1) && one.resident > 0 && !is_used(i);
    if (!idle || (total <= limit_ && uses_ - one.last_use < long_unused)) continue;
    ::madvise(place_->shared(i), one.resident, MADV_REMOVE);
    total -= one.resident;
    one.resident = one.written_warm = one.read_warm = 0;
  }
}

void pool::release(int segment) { drop(segment, false); }

memory pool::lease(int segment, std::size_t first, std::size_t bytes) {
  auto* data = place_->view(segment) + first;
  std::shared_ptr<const void> owner(data, [home = shared_from_this(), segment](const void*) {
    // In a child of fork the segment is the parent's to give back.
    if (home->process_ == ::getpid()) home->drop(segment, true);
  });
  return {data, bytes, std::move(owner)};
}

void pool::drop(int segment, bool was_result) {
  std::optional<std::size_t> written = 0;
  auto& one = segments_[segment];
  if (was_result && place_->has_views()) written = discard_written(place_->view(segment), one.bytes, place_->marks());
  const std::lock_guard lock(mutex_);
  if (was_result) {
    // What hides later results for good: it is not used again.
    if (!written) one.kept = true;
    const bool mostly = written.value_or(0) * page_bytes() * written_share > one.bytes;
    if (mostly) private_for_[size_class(one.bytes)] = private_results;
    if (written != 0) one.read_warm = 0;
  }
  mark(segment, one.kept);
}

void pool::warm_for_writing(int segment, std::size_t first, std::size_t bytes) {
  auto& one = segments_[segment];
  if (first + bytes <= one.written_warm) return;
  populate(place_->shared(segment) + first, bytes, populate_write);
}

void pool::warm_for_reading(int segment, std::size_t bytes) {
  auto& one = segments_[segment];
  if (bytes > one.read_warm) {
    populate(place_->view(segment), bytes, populate_read);
    one.read_warm = bytes;
  }
  if (bytes > one.written_warm) {  // blocks lie elsewhere the next time
    populate(place_->shared(segment), bytes, populate_write);
    one.written_warm = bytes;
  }
}

bool pool::prefers_private(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& left = private_for_[size_class(bytes)];
  return left > 0 && left-- > 0;
}

pool::usage pool::count() const {
  const std::lock_guard lock(mutex_);
  usage now{.used = std::popcount(~unused()), .limit = limit_};
  for (const auto& one : segments_) now.resident += one.resident;
  return now;
}

void pool::unlock_after_fork(bool in_parent) {
  if (in_parent) {
    for (int i = 0; i < segment_count; ++i) segments_[i].kept |= is_used(i);
  }
  mutex_.unlock();
}

}  // namespace sheaf::shm
