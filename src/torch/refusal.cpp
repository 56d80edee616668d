// SPDX-License-Identifier: MIT
#include "torch/refusal.hpp"

#include "torch/async.hpp"
#include "torch/collective.hpp"
#include "torch/group.hpp"

namespace sheaf {

void refuse_for_all(const std::string& why, arguments with, bool later) {
  const auto moves = find_engine(with.group);
  with.world = moves->world();
  if (check_timeout(with.timeout)) with.timeout.reset();
  // The others number a call that they start only if there is a place for it.
  const auto place = later ? async::take_place(*moves, with.op) : progress::place();
  // Calls that were started come first, and this one waits for nobody.
  if (later || moves->line()->is_busy()) async::refuse_in_turn(moves, with, why);
  collective(with).refuse_if(why);
}

}  // namespace sheaf
