// SPDX-License-Identifier: MIT
// Large copies and sums run on torch's intra-op threads: as many as torch.get_num_threads() says.
#include <ATen/Parallel.h>

#include "core/parallel.hpp"

namespace sheaf {
namespace {

void run(std::int64_t parts, void* context, parallel_body body) {
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (auto part = first; part < last; ++part) body(context, part);
  });
}

const bool installed = (use_threads({at::get_num_threads, run}), true);

}  // namespace
}  // namespace sheaf
