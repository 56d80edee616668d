// SPDX-License-Identifier: MIT
// gather_sizes: the exchange of headers alone.
#include <sheaf/all_gather.hpp>

#include "torch/collective.hpp"
#include "torch/errors.hpp"
#include "torch/ops.hpp"
#include "torch/refusal.hpp"

namespace sheaf {

at::Tensor kernels::gather_sizes(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string group,
                                 timeout_argument timeout, std::string grad, std::int64_t follows) {
  return translated([&] {
    collective run({.op = operation::gather_sizes,
                    .mode = grad,
                    .group = group,
                    .world = world,
                    .timeout = timeout,
                    .follows = follows});
    run.take(x, dim);
    run.describe(x, dim, recording::off);
    return sizes_tensor(run.learn({}).rows_of());
  });
}

at::Tensor gather_sizes(const at::Tensor& x, const gather_sizes_options& options) {
  if (const auto why = check_dispatched(x)) {
    translated([&] { refuse_for_all(*why, arguments_of(operation::gather_sizes, options)); });
  }
  return ops::gather_sizes(x, options.dim, options.group.world(), options.group.name(), seconds_of(options.timeout),
                           "sum", 0);
}

}  // namespace sheaf
