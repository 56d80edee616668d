// SPDX-License-Identifier: MIT
// Long waits ask here, between slices, whether to give up (Ctrl-C). Python installs its question; C++ may.
#pragma once

#include <chrono>
#include <functional>
#include <sheaf/export.hpp>

namespace sheaf {

inline constexpr std::chrono::milliseconds wait_slice{100};

void throw_if_interrupted();

// Asked instead, in the thread that made it and while it lives: a thread of Sheaf's own is not the user's to interrupt.
// Throws what shall end the wait.
class asked_here {
 public:
  explicit asked_here(std::function<void()> question);
  ~asked_here();
  asked_here(const asked_here&) = delete;
  asked_here& operator=(const asked_here&) = delete;

 private:
  const std::function<void()> question_;
};

}  // namespace sheaf

// `pending` is called from the waiting thread; anything but 0 ends the wait. Null takes it back.
extern "C" SHEAF_API void sheaf_on_wait(int (*pending)());
