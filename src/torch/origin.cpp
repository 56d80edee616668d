// SPDX-License-Identifier: MIT
#include "torch/origin.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>

#include "torch/ops.hpp"

namespace sheaf {

namespace {

std::int64_t rows_of(const origin_and_sizes& given) { return given.sizes.size(0) - (given.origin == behind_sizes); }

at::Tensor alone(const origin_and_sizes& given) {
  return given.origin == behind_sizes ? given.sizes.narrow(0, 0, rows_of(given)) : given.sizes;
}

}  // namespace

origin_and_sizes for_backward(const outcome& said, const origin_and_sizes& own, std::string_view mode) {
  const auto sizes = alone(own);
  // Without a number, no kernel ran: in a compiler's trace, and where a checkpoint has kept the result.
  const bool traced = said.sequence == 0 && sizes.unsafeGetTensorImpl()->is_python_dispatch();
  if (!traced || mode == name(gradient::own)) return {said.sequence, kept_sizes(sizes)};
  const at::AutoDispatchBelowADInplaceOrView below;
  return {behind_sizes, ops::numbered(sizes)};
}

origin_and_sizes of_backward(std::int64_t origin, const at::Tensor& sizes) {
  if (origin != behind_sizes) return {origin, sizes};
  const origin_and_sizes given{origin, sizes};
  return {sizes.select(0, rows_of(given)).reshape(-1)[0].item<std::int64_t>(), alone(given)};
}

at::Tensor kernels::numbered(const at::Tensor& sizes) {
  std::vector<std::int64_t> behind(2 * static_cast<std::size_t>(sizes.dim()));
  behind.back() = 1;
  return at::constant_pad_nd(sizes, behind, last_number());
}

}  // namespace sheaf
