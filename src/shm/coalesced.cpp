// SPDX-License-Identifier: MIT
// Several tensors are one segment, each at its place, and every rank writes all of its blocks before it says so once.
#include <algorithm>

#include "core/bundle.hpp"
#include "core/copy.hpp"
#include "shm/engine.hpp"

namespace sheaf::shm {

void engine::all_gather_coalesced(const call& now, const bundle& all) {
  spread_out();
  auto waiting = patience_for(now);
  if (const auto segment = segment_for(now, static_cast<std::size_t>(all.wholes().bytes()))) {
    gather_in_segment(waiting, all, *segment);
  } else {
    gather_packed_in_steps(waiting, all);
  }
  waiting.finish();
}

void engine::gather_in_segment(patience& waiting, const bundle& all, int segment) {
  auto* shared = place_->shared(segment);
  const auto tensors = all.parts();
  const auto next = readers_of(waiting.now().head, all.packed().bytes());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& at = tensors[i].at;
    const bool one_run = at.outer == 1;
    pool_->warm_for_writing(segment, all.whole_place(i) + (one_run ? at.block_offset(rank_) : 0),
                            static_cast<std::size_t>(one_run ? at.block_bytes(rank_) : at.bytes()));
    place(at, rank_, tensors[i].own.data, shared + all.whole_place(i), next);
  }
  publish(&board::progress, moment(waiting.now().head.sequence, 1));
  const auto is_view = [&](std::size_t i) {
    return tensors[i].whole.data == place_->view(segment) + all.whole_place(i);
  };
  if (is_view(0)) {
    await_step_of_all(waiting, 1, &board::progress);
    pool_->warm_for_reading(segment, static_cast<std::size_t>(all.wholes().bytes()));
    return;
  }
  for (int turn = 0; turn < world_; ++turn) {
    const int peer = (rank_ + turn) % world_;
    if (peer != rank_) await_step(waiting, peer, 1, &board::progress);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      copy_block(tensors[i].at, peer, shared + all.whole_place(i), tensors[i].whole.data);
    }
  }
}

void engine::gather_packed_in_steps(patience& waiting, const bundle& all) {
  const auto& at = all.packed();
  const auto own = warm_->take(static_cast<std::size_t>(at.sizes[rank_]));
  const auto whole = warm_->take(static_cast<std::size_t>(at.bytes()));
  all.pack_own(own.data);
  gather_in_steps(waiting, at, own, whole);
  for (int peer = 0; peer < world_; ++peer) all.unpack(peer, whole.data + at.offsets[peer]);
}

}  // namespace sheaf::shm
