// SPDX-License-Identifier: MIT
// The tensors of one coalesced call in the cases: what each is, and the options that say so.
#pragma once

#include <optional>
#include <vector>

#include "cpp/truth.hpp"

namespace sheaf::test {

struct kind {
  ragged now;
  gradient mode = gradient::sum;

  bool records() const { return at::isFloatingType(now.type) || at::isComplexType(now.type); }
  at::Tensor upstream(int rank) const {
    return now.rows_of(mode == gradient::own    ? now.whole(rank)
                       : mode == gradient::mean ? now.averaged()
                                                : now.summed(),
                       rank);
  }
};
using kinds = std::vector<kind>;

// `given`: no sizes (0), those of every other tensor (1), or all (2).
inline all_gather_coalesced_options options_of(const group& me, const kinds& all, int given) {
  std::vector<std::int64_t> dims;
  std::vector<std::optional<at::Tensor>> sizes;
  std::vector<gradient> modes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    dims.push_back(all[i].now.dim);
    sizes.push_back(all[i].now.sizes_if(given == 2 || (given == 1 && i % 2 == 0)));
    modes.push_back(all[i].mode);
  }
  return {.dim = dims, .sizes = sizes, .grad = modes, .group = me};
}

}  // namespace sheaf::test
