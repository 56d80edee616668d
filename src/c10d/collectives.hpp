// SPDX-License-Identifier: MIT
// Moves blocks by the collectives of a group's backend for their device: NCCL, for CUDA tensors. Nothing here waits for
// a device; what a call starts is in order on the current stream.
#pragma once

#include "c10d/backends.hpp"
#include "core/bundle.hpp"
#include "core/engine.hpp"

namespace sheaf::c10d_engine {

class collectives {
 public:
  explicit collectives(std::shared_ptr<const link> group) : rank_(group->rank()), by_(std::move(group)) {}

  // Why calls that are started run where they are started; empty: they do not.
  std::string why_not_apart(c10::DeviceType device) const { return by_.why_no_second(device); }

  // Several tensors travel packed, as one.
  void all_gather(const call& now, const bundle& all);
  void reduce_scatter(const call& now, const bundle& all);

 private:
  const int rank_;
  backends by_;
};

}  // namespace sheaf::c10d_engine
