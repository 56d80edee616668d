// SPDX-License-Identifier: MIT
#include "torch/tensors.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "core/pages.hpp"
#include "core/small.hpp"
#include "torch/device.hpp"
#include "torch/result.hpp"

namespace sheaf {
namespace {

// Without the dispatcher, which would take longer.
at::Tensor empty_on_host(at::IntArrayRef shape, at::ScalarType type) {
  const auto bytes = c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(type));
  return bytes <= static_cast<std::int64_t>(small::most_bytes) ? small_tensor(shape, type)
                                                               : at::detail::empty_cpu(shape, type);
}

at::DimVector shape_with_rows(const at::Tensor& x, std::int64_t dim, std::int64_t rows) {
  at::DimVector shape(x.sizes());
  shape[dim < 0 ? dim + x.dim() : dim] = rows;
  return shape;
}

}  // namespace

at::Tensor sizes_tensor(const std::vector<std::int64_t>& rows) {
  at::Tensor sizes = empty_on_host({static_cast<std::int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), sizes.mutable_data_ptr<std::int64_t>());
  return sizes;
}

at::Tensor contiguous(const at::Tensor& x) {
  if (x.is_contiguous() && !x.is_conj() && !x.is_neg()) return x;  // without asking the dispatcher
  return x.resolve_conj().resolve_neg().contiguous();
}

memory memory_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(const_cast<void*>(contiguous.const_data_ptr())), contiguous.nbytes(),
          std::make_shared<at::Tensor>(contiguous), device_from(contiguous.device().type()),
          std::max<int>(0, contiguous.device().index())};
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

at::Tensor tensor_in(memory bytes, const at::Tensor& like, std::int64_t dim, std::int64_t rows) {
  if (!bytes.data) return empty_with_rows(like, dim, rows);
  return tensor_over(std::move(bytes), shape_with_rows(like, dim, rows), like.options());
}

at::Tensor empty_with_rows(const at::Tensor& x, std::int64_t dim, std::int64_t rows) {
  const auto shape = shape_with_rows(x, dim, rows);
  if (!x.is_cpu()) return at::empty(shape, x.options().memory_format(at::MemoryFormat::Contiguous));
  at::Tensor result = empty_on_host(shape, x.scalar_type());
  prefer_huge_pages(static_cast<std::byte*>(result.mutable_data_ptr()), result.nbytes());
  return result;
}

at::Tensor alone_result(const at::Tensor& x) {
  const auto result = contiguous(x);
  return c10::GradMode::is_enabled() ? result : result.detach();
}

at::Tensor divided(const at::Tensor& x, std::int64_t world) {
  if (x.is_complex()) return at::view_as_complex(divided(at::view_as_real(x.resolve_conj()), world));
  const bool is_half = !x.is_cpu() && c10::isReducedFloatingType(x.scalar_type());
  if (is_half || c10::isFloat8Type(x.scalar_type())) return divided(x.to(at::kFloat), world).to(x.scalar_type());
  // On a device torch multiplies by the inverse of a number, which rounds twice; narrow types may not hold the number.
  return x.is_cpu() ? x.div(world) : x.div(at::full({}, world, x.options()));
}

}  // namespace sheaf
