// SPDX-License-Identifier: MIT
#include "core/chore.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "core/symbol.hpp"

namespace sheaf {
namespace {

// A group may take its time to go, but a process that cannot end is worse than one that ends badly.
constexpr std::chrono::seconds longest_chore{5};
// Calls look around every wait_slice; a process ends within a second of its end. What cannot look around may be about
// to be done, or wait for ever.
constexpr std::chrono::milliseconds longest_blind_wait{200};
constexpr std::chrono::milliseconds longest_errand{500};  // after that

struct ending {
  std::timed_mutex under_way;  // held by each chore
  std::atomic<bool> has_begun{false};

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  int errands = 0;
  int blind = 0;      // of them, in a blind_wait
  bool over = false;  // nothing is waited for any more
};

// Never destroyed: threads outlive main.
ending* the_ending = new ending;

thread_local bool has_errand = false;

void end_chores() {
  if (!the_ending->has_begun.exchange(true)) {
    std::unique_lock lock(the_ending->mutex);
    the_ending->changed.wait_for(lock, longest_blind_wait, [] { return the_ending->errands == 0; });
    the_ending->changed.wait_for(lock, longest_errand, [] { return the_ending->errands == the_ending->blind; });
    the_ending->over = true;
  }
  // By the system's clock: the thread sanitizer knows no other way to lock for a time.
  const std::unique_lock lock(the_ending->under_way, std::chrono::system_clock::now() + longest_chore);
}

// A thread that asks for Python's lock once Python ends is unwound, through destructors: std::terminate. So chores must
// be over before. Python's functions are looked up by name, so that the library needs no Python; ctypes calls without
// Python's lock, which the chore under way may wait for.
void end_chores_before_python() {
  const auto is_initialized = find_symbol<int()>("Py_IsInitialized");
  const auto take_lock = find_symbol<int()>("PyGILState_Ensure");
  const auto drop_lock = find_symbol<void(int)>("PyGILState_Release");
  const auto run = find_symbol<int(const char*)>("PyRun_SimpleString");
  if (!is_initialized || !take_lock || !drop_lock || !run || !is_initialized()) return;
  const auto address = std::to_string(reinterpret_cast<std::uintptr_t>(&end_chores));
  const int lock = take_lock();
  run(("__import__('atexit').register(__import__('ctypes').CFUNCTYPE(None)(" + address + "))").c_str());
  drop_lock(lock);
}

}  // namespace

chore::chore() : lock_(the_ending->under_way) {
  if (the_ending->has_begun) lock_.unlock();
}

errand::errand() {
  const std::lock_guard lock(the_ending->mutex);
  under_way_ = !the_ending->has_begun;
  if (under_way_) ++the_ending->errands;
  has_errand = under_way_;
}

errand::~errand() {
  has_errand = false;
  if (!under_way_) return;
  const std::lock_guard lock(the_ending->mutex);
  --the_ending->errands;
  the_ending->changed.notify_all();
}

blind_wait::blind_wait() : of_errand_(std::exchange(has_errand, false)) {
  if (!of_errand_) return;
  const std::lock_guard lock(the_ending->mutex);
  ++the_ending->blind;
  the_ending->changed.notify_all();
}

blind_wait::~blind_wait() {
  if (!of_errand_) return;
  has_errand = true;
  {
    const std::lock_guard lock(the_ending->mutex);
    --the_ending->blind;
    if (!the_ending->over) return;
  }
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));  // whatever it would touch may be gone
}

bool is_ending() { return the_ending->has_begun; }

void end_chores_at_exit() {
  static std::atomic<bool> arranged{false};
  if (arranged || arranged.exchange(true)) return;
  // A child of fork has no thread of Sheaf's, but may have been made amid a chore.
  pthread_atfork(nullptr, nullptr, [] { the_ending = new ending; });
  std::atexit(end_chores);
  end_chores_before_python();
}

}  // namespace sheaf
