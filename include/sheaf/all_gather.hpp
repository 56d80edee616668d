// SPDX-License-Identifier: MIT
// Tensors that differ in size along one dim, from every rank, in one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <sheaf/export.hpp>
#include <sheaf/gradient.hpp>
#include <sheaf/group.hpp>
#include <sheaf/handle.hpp>
#include <utility>
#include <vector>

namespace sheaf {

struct all_gather_options {
  std::int64_t dim = 0;
  std::optional<at::Tensor> sizes = std::nullopt;  // every rank's rows, where they are known
  gradient grad = gradient::sum;
  sheaf::group group = {};
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  // nothing: the group's
  // For static shapes: one integer on x's device, how many of its rows are valid. Every rank passes one, and no sizes;
  // such a call cannot be started. All ranks' buffers have the same rows; the result has all of them, valid ones first
  // and in rank order, the rest zero. A count that is negative or beyond the buffer is clamped, and the next call with
  // one of this group and device that is not captured in a graph throws.
  std::optional<at::Tensor> valid = std::nullopt;
};

struct gathered {
  at::Tensor tensor;
  at::Tensor sizes;  // int64, one entry per rank; on the CPU or, where `valid` was given, on the tensor's device
};

// The blocks of all ranks in rank order along `dim`, contiguous, differentiable to any order. All ranks must agree on
// dtype, device type, number of dims, `dim`, the sizes of all other dims and `grad`.
SHEAF_API gathered all_gather(const at::Tensor& x, const all_gather_options& options = {});

// The same, started: waits for no other rank, except in the group's first call. At most 64 calls of a group may be in
// flight; results and their gradients are those of the plain call.
SHEAF_API handle<gathered> all_gather_async(const at::Tensor& x, const all_gather_options& options = {});
inline void unpack(std::vector<at::Tensor> from, gathered& result) {
  result = {std::move(from[0]), std::move(from[1])};
}

struct gather_sizes_options {
  std::int64_t dim = 0;
  sheaf::group group = {};
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

// Every rank's size along `dim`: int64, CPU, one entry per rank.
SHEAF_API at::Tensor gather_sizes(const at::Tensor& x, const gather_sizes_options& options = {});

// The gathered tensor as views, one per rank.
SHEAF_API std::vector<at::Tensor> split(const at::Tensor& gathered, const at::Tensor& sizes, std::int64_t dim = 0);

// Where the own rows begin in the gathered tensor.
SHEAF_API std::int64_t offset(const at::Tensor& sizes, const group& of = {});

}  // namespace sheaf
