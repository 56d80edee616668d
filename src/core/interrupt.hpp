// SPDX-License-Identifier: MIT
// Long waits ask here, between slices, whether to give up (Ctrl-C). Python installs its question; C++ may.
#pragma once

#include <chrono>
#include <sheaf/export.hpp>

namespace sheaf {

inline constexpr std::chrono::milliseconds wait_slice{100};

void throw_if_interrupted();

}  // namespace sheaf

// `pending` is called from the waiting thread; anything but 0 ends the wait. Null takes it back.
extern "C" SHEAF_API void sheaf_on_wait(int (*pending)());
