// SPDX-License-Identifier: MIT
#include "torch/origin.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>

#include "torch/ops.hpp"

namespace sheaf {

origin_and_sizes for_backward(const outcome& said, const at::Tensor& sizes, std::string_view mode) {
  // Kernels give every call a number that is not of mode `own`: there was none.
  const bool traced = said.sequence == 0 && mode != name(gradient::own);
  if (!traced) return {said.sequence, kept_sizes(sizes)};
  const at::AutoDispatchBelowADInplaceOrView below;
  return {behind_sizes, ops::numbered(sizes)};
}

origin_and_sizes of_backward(std::int64_t origin, const at::Tensor& sizes) {
  if (origin != behind_sizes) return {origin, sizes};
  const auto rows = sizes.size(0) - 1;
  return {*sizes.select(0, rows).const_data_ptr<std::int64_t>(), sizes.narrow(0, 0, rows)};
}

at::Tensor kernels::numbered(const at::Tensor& sizes) {
  std::vector<std::int64_t> behind(2 * static_cast<std::size_t>(sizes.dim()));
  behind.back() = 1;
  return at::constant_pad_nd(sizes, behind, last_number());
}

}  // namespace sheaf
