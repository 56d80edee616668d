// SPDX-License-Identifier: MIT
// One particular process group, held neither strongly nor weakly: c10d destroys a group, its threads and its sockets
// only when the last weak pointer is gone too, so Sheaf must hold none.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace sheaf::c10d_engine {

using group_pointer = c10::intrusive_ptr<c10d::ProcessGroup>;

class group_ref {
 public:
  // Leaves a mark in the options of the group's backend: an address or a name alone may be another group's later.
  explicit group_ref(const group_pointer& group);

  // Null once that very group was destroyed.
  group_pointer lock() const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  const c10d::ProcessGroup* address_;
  std::string mark_;
};

// Of the group's backend for CPU tensors or, where it has none, for CUDA tensors. Null where that has none.
c10::intrusive_ptr<c10d::Backend::Options> options_of(c10d::ProcessGroup& group);

// Null when no group has that name.
group_pointer find_group(const std::string& name);
// Throws value_error instead.
group_pointer resolve(const std::string& name);

}  // namespace sheaf::c10d_engine
