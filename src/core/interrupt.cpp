// SPDX-License-Identifier: MIT
#include "core/interrupt.hpp"

#include <atomic>
#include <sheaf/error.hpp>

namespace {

std::atomic<int (*)()> question{nullptr};

}  // namespace

extern "C" void sheaf_on_wait(int (*pending)()) { question.store(pending); }

namespace sheaf {

void throw_if_interrupted() {
  const auto pending = question.load();
  if (pending && pending() != 0) throw interrupted("interrupted while waiting for other ranks");
}

}  // namespace sheaf
