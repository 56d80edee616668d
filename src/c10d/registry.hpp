// SPDX-License-Identifier: MIT
// The engine of a c10d group, made at its first call and kept while the group lives. No c10d header is needed here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/engine.hpp"

namespace sheaf::c10d_engine {

struct group_info {
  int rank;
  int world;
  std::string cpu_engine;   // what carries CPU tensors, and why; empty: the group has no backend for them
  std::string cuda_engine;  // the same for CUDA tensors; empty also where this build has no CUDA
};

// Both throw value_error when no group has that name; find() also when the group has no backend that
// Sheaf can use.
std::shared_ptr<engine> find(const std::string& group);
group_info inspect(const std::string& group);
bool has_group(const std::string& group);

// Drops the engines of groups that are gone: what stands ready to receive keeps their sockets open.
void forget_destroyed_groups();

}  // namespace sheaf::c10d_engine
