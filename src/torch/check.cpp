// SPDX-License-Identifier: MIT
#include "torch/check.hpp"

#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <numeric>
#include <sheaf/error.hpp>

#include "core/text.hpp"
#include "torch/device.hpp"

namespace sheaf {
namespace {

std::optional<dtype> dtype_from(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return dtype::boolean;
    case at::kChar:
      return dtype::int8;
    case at::kShort:
      return dtype::int16;
    case at::kInt:
      return dtype::int32;
    case at::kLong:
      return dtype::int64;
    case at::kByte:
      return dtype::uint8;
    case at::kUInt16:
      return dtype::uint16;
    case at::kUInt32:
      return dtype::uint32;
    case at::kUInt64:
      return dtype::uint64;
    case at::kHalf:
      return dtype::float16;
    case at::kBFloat16:
      return dtype::bfloat16;
    case at::kFloat:
      return dtype::float32;
    case at::kDouble:
      return dtype::float64;
    case at::kComplexHalf:
      return dtype::complex32;
    case at::kComplexFloat:
      return dtype::complex64;
    case at::kComplexDouble:
      return dtype::complex128;
    case at::kFloat8_e4m3fn:
      return dtype::float8_e4m3fn;
    case at::kFloat8_e4m3fnuz:
      return dtype::float8_e4m3fnuz;
    case at::kFloat8_e5m2:
      return dtype::float8_e5m2;
    case at::kFloat8_e5m2fnuz:
      return dtype::float8_e5m2fnuz;
    case at::kFloat8_e8m0fnu:
      return dtype::float8_e8m0fnu;
    default:
      return std::nullopt;
  }
}

}  // namespace

refusal check_tensor(const at::Tensor& x, std::int64_t dim) {
  if (!x.defined()) return "the tensor is undefined";
  if (x.is_nested()) return "nested tensors are not taken: pass the values and gather along their ragged dim";
  if (x.is_quantized()) return "quantized tensors are not taken: pass x.int_repr() or x.dequantize()";
  if (x.layout() != at::kStrided) return "sparse tensors are not taken: pass x.to_dense(), or its parts";
  if (x._fw_grad(0).defined()) return "forward-mode AD is not supported: use reverse mode";
  if (x.dim() == 0) return "a 0-d tensor has no dim to gather along: pass x.reshape(1)";
  if (x.dim() > record::max_dims) {
    return "tensors have at most " + std::to_string(record::max_dims) + " dims, got " + std::to_string(x.dim()) +
           ": flatten some";
  }
  if (dim < -x.dim() || dim >= x.dim()) {
    return "dim must be from " + std::to_string(-x.dim()) + " to " + std::to_string(x.dim() - 1) + ", got " +
           std::to_string(dim);
  }
  if (!dtype_from(x.scalar_type())) return "dtype " + std::string(c10::toString(x.scalar_type())) + " is not taken";
  return std::nullopt;
}

refusal check_carried(const at::Tensor& x, bool carried) {
  if (x.is_meta()) return "meta tensors hold no data: with sizes given, a FakeTensorMode infers shapes";
  if (carried) return std::nullopt;
  if (x.is_cpu()) return "the process group has no backend for CPU tensors: make it with one, such as gloo";
  return "no engine of this group carries tensors on device " + x.device().str() + ": sheaf.engine() says why";
}

refusal check_dispatched(const at::Tensor& x) {
  if (!x.defined() || x.is_nested()) return check_tensor(x, 0);
  return x.is_meta() ? check_carried(x, false) : std::nullopt;
}

refusal check_sizes(const at::Tensor& sizes, int world) {
  if (!sizes.defined() || sizes.dim() != 1 || !c10::isIntegralType(sizes.scalar_type(), /*includeBool=*/false)) {
    return "sizes must be one row of integers, one per rank";
  }
  if (sizes.size(0) != world) {
    return "sizes must have " + std::to_string(world) + " entries, one per rank, got " + std::to_string(sizes.size(0));
  }
  for (const auto rows : sizes_of(sizes)) {
    if (rows < 0) return "sizes must not be negative, got " + list(sizes_of(sizes));
  }
  return std::nullopt;
}

refusal check_own_size(const std::vector<std::int64_t>& sizes, int rank, std::int64_t rows) {
  if (sizes[rank] == rows) return std::nullopt;
  return "sizes " + list(sizes) + " give this rank " + std::to_string(sizes[rank]) + " rows, but it has " +
         std::to_string(rows);
}

refusal check_total(const std::vector<std::int64_t>& sizes, std::int64_t total, const char* what) {
  std::int64_t sum = 0;
  for (const auto rows : sizes) {
    if (__builtin_add_overflow(sum, rows, &sum)) return "sizes " + list(sizes) + " add up to more than 63 bits hold";
  }
  if (sum == total) return std::nullopt;
  return "sizes " + list(sizes) + " add up to " + std::to_string(sum) + ", but " + what + " " + std::to_string(total);
}

refusal check_reduction(const at::Tensor& y, gradient mode) {
  if (y.scalar_type() == at::kBool) return "bool tensors have no sum: convert to uint8 or int64 first";
  if (mode == gradient::mean && c10::isIntegralType(y.scalar_type(), /*includeBool=*/true)) {
    return "integer tensors have no mean: use sum, or convert to a floating type first";
  }
  return std::nullopt;
}

refusal check_timeout(std::optional<double> seconds) {
  if (!seconds || (std::isfinite(*seconds) && *seconds > 0 && *seconds <= 1e9)) return std::nullopt;
  return "timeout must be a positive number of seconds, got " + std::to_string(*seconds);
}

at::Tensor alone(const std::string& op, const at::Tensor& x, const std::optional<at::Tensor>& sizes, std::int64_t dim,
                 gradient mode, std::optional<double> timeout) {
  const auto refuse_if = [&](const refusal& why) {
    if (why) throw value_error(op + ": " + *why);
  };
  refuse_if(check_timeout(timeout));
  refuse_if(check_tensor(x, dim));
  refuse_if(check_carried(x, true));
  const bool reduces = op.starts_with("reduce_scatter");
  if (reduces) refuse_if(check_reduction(x, mode));
  if (sizes) {
    refuse_if(check_sizes(*sizes, 1));
    const auto rows = sizes_of(*sizes);
    refuse_if(reduces ? check_total(rows, x.size(dim), "the tensor has") : check_own_size(rows, 0, x.size(dim)));
  }
  return at::tensor({x.size(dim)}, at::kLong);
}

record record_of(const at::Tensor& x, std::int64_t dim) {
  record result;
  result.type = *dtype_from(x.scalar_type());
  result.device = device_from(x.device().type());
  result.ndim = static_cast<std::uint8_t>(x.dim());
  result.dim = static_cast<std::int8_t>(dim < 0 ? dim + x.dim() : dim);
  std::copy(x.sizes().begin(), x.sizes().end(), result.shape.begin());
  return result;
}

std::vector<std::int64_t> sizes_of(const at::Tensor& sizes) {
  const auto rows = sizes.to(at::kCPU, at::kLong).contiguous();
  return {rows.const_data_ptr<std::int64_t>(), rows.const_data_ptr<std::int64_t>() + rows.numel()};
}

at::Tensor rows_as_given(const at::Tensor& sizes) {
  if (!sizes.defined() || !c10::isIntegralType(sizes.scalar_type(), /*includeBool=*/false)) return sizes;
  return sizes.to(at::kCPU, at::kLong).contiguous();
}

at::Tensor kept_sizes(const at::Tensor& sizes) { return sizes.is_inference() ? sizes.clone() : sizes; }

gradient gradient_from(std::string_view text) {
  for (const auto mode : {gradient::sum, gradient::mean, gradient::own}) {
    if (text == name(mode)) return mode;
  }
  throw value_error("a gradient is \"sum\", \"mean\" or \"own\", got \"" + std::string(text) + "\"");
}

}  // namespace sheaf
