// SPDX-License-Identifier: MIT
// Moves blocks by the collectives of a group's backend for their device: NCCL, for CUDA tensors. Nothing here waits for
// a device; what a call starts is in order on the current stream.
#pragma once

#include "c10d/group_ref.hpp"
#include "core/bundle.hpp"
#include "core/engine.hpp"

namespace sheaf::c10d_engine {

class collectives {
 public:
  explicit collectives(const group_ref& group, int rank) : group_(group), rank_(rank) {}

  // Several tensors travel packed, as one.
  void all_gather(const call& now, const bundle& all) const;
  void reduce_scatter(const call& now, const bundle& all) const;

 private:
  const group_ref group_;
  const int rank_;
};

}  // namespace sheaf::c10d_engine
