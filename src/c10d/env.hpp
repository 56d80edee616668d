// SPDX-License-Identifier: MIT
// Groups of processes that a launcher started (torchrun, or a shell that sets the same variables), with no Python: they
// meet in a TCP store and share memory. No c10d header is needed here.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/engine.hpp"

namespace sheaf::env {

// A group of the processes that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name, known to find() for as long as it
// lives. Waits for all of them; throws value_error for variables that are missing or mean nothing, and when the ranks
// are on several hosts.
struct membership {
  std::string name;  // empty: this process is alone
  std::shared_ptr<void> alive;
};
membership join(std::chrono::milliseconds timeout);

bool is_name(const std::string& group);
// Throws value_error when there is none.
std::shared_ptr<engine> find(const std::string& group);
std::string describe(const std::string& group);

}  // namespace sheaf::env
