// SPDX-License-Identifier: MIT
// What one process says of data that every rank can compute for all ranks, in plain ATen, and how it is compared.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <optional>
#include <sheaf/sheaf.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace sheaf::test {

using extents = std::vector<std::int64_t>;

// Where all tensors lie: on the CPU, if nobody says anything else. Truths are computed on the CPU.
c10::Device& device();
inline at::TensorOptions there(at::ScalarType type = at::kFloat) { return at::TensorOptions(type).device(device()); }

// Different in every element and for every seed. Floats are spread by `spread`, so that a zero in their place shows;
// integers take every value of their type.
at::Tensor noise(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType type = at::kDouble, double spread = 100);

// One ragged call: what every rank brings, and what must come of it.
struct ragged {
  extents sizes;
  std::int64_t dim = 0;
  extents shape = {2, 3, 4};  // of a block; what it says along `dim` is not looked at
  at::ScalarType type = at::kDouble;
  std::uint64_t seed = 1;

  int world() const { return static_cast<int>(sizes.size()); }
  std::int64_t rows() const;
  extents shape_with(std::int64_t rows) const;
  at::Tensor block(int rank) const;                                // rank's input of all_gather
  at::Tensor whole(int rank) const;                                // rank's input of reduce_scatter, or its upstream
  at::Tensor rows_of(const at::Tensor& whole, int rank) const;     // contiguous
  at::Tensor joined(const std::vector<at::Tensor>& blocks) const;  // in rank order
  at::Tensor gathered() const;
  at::Tensor summed() const;    // whole(0) + whole(1) + ...
  at::Tensor averaged() const;  // the same divided
  at::Tensor sizes_tensor() const;
  std::optional<at::Tensor> sizes_if(bool given) const;
  std::string text() const;
};

// Even; ragged; each rank in turn empty; all empty; each rank in turn holding everything.
std::vector<extents> size_patterns(int world);

// In rank order from rank 0's value; float32 for narrow floats, rounded once; integers wrap.
at::Tensor sum_truth(const std::vector<at::Tensor>& values, bool mean);
// By a number of ranks; complex values part by part.
at::Tensor divided(const at::Tensor& x, std::int64_t by);

void expect(bool holds, const std::string& what);
// Type, shape and every bit, wherever they lie.
void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what);
// Type and shape, and values to rounding.
void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what);
void expect_contains(const std::string& text, const std::string& part);

// The text of the Error that `body` must throw, without the backtrace.
template <class Error, class Body>
std::string error_of(Body&& body, const std::string& what) {
  try {
    body();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    throw std::runtime_error(what + " threw another error: " + error.what());
  }
  throw std::runtime_error(what + " threw nothing");
}

// Whether the ranks share memory.
bool is_shared(const group& me);
// Whether ranks compare headers also where sizes are given.
bool headers_are_compared(const group& me);

// All ranks have the same text, and the group carries it: it works.
void expect_same_everywhere(const group& me, const std::string& text);

at::Tensor leaf(const at::Tensor& x);  // a copy that records gradients
at::Tensor grad_of(const at::Tensor& y, const at::Tensor& x, const at::Tensor& upstream, bool differentiable = false);

const char* name_of(gradient mode);
inline constexpr gradient all_modes[] = {gradient::sum, gradient::mean, gradient::own};

}  // namespace sheaf::test
