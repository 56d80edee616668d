// SPDX-License-Identifier: MIT
// What the coalesced ops share: checks that name the tensor, a header with a record per tensor, a bundle of all of
// them.
#pragma once

#include <functional>
#include <limits>
#include <sheaf/all_gather_coalesced.hpp>
#include <string>
#include <vector>

#include "core/bundle.hpp"
#include "torch/collective.hpp"
#include "torch/ops.hpp"

namespace sheaf {

using rows_table = std::vector<std::vector<std::int64_t>>;  // by tensor and rank; a row may be empty: not given

// In sizes that the ops take, of a tensor whose sizes are to be learned.
inline constexpr auto not_given = std::numeric_limits<std::int64_t>::min();

// "tensor 2: …"
refusal of_tensor(std::size_t index, const refusal& why);

// What one rank sees wrong by itself, in the order in which it is said.
refusal check_each(at::TensorList tensors, at::IntArrayRef dims,
                   const std::function<bool(const at::Tensor&)>& is_carried);
refusal check_modes(const mode_list& texts, std::size_t tensors, bool may_be_own);
refusal check_table(const at::Tensor& sizes, std::size_t tensors, int world, bool may_be_learned);
// Whether none are to be learned; of sizes that will be refused, too.
bool are_all_given(const at::Tensor& sizes);
// Of sizes that passed.
rows_table table_of(const at::Tensor& sizes);

// One coalesced call, its tensors checked.
class coalesced {
 public:
  coalesced(const arguments& with, at::TensorList tensors, at::IntArrayRef dims);

  collective& run() { return run_; }
  std::size_t count() const { return tensors_.size(); }
  void refuse_if(std::size_t tensor, const refusal& why) { run_.refuse_if(of_tensor(tensor, why)); }
  void refuse_unless_each(const char* what, std::size_t got);
  // One a tensor, given so or once for all; `own` only where it is allowed.
  std::vector<gradient> modes(const mode_list& texts, bool may_be_own);
  // Sizes as the ops take them, (tensors, ranks). Rows of `not_given` are to be learned, where they may be.
  rows_table given(const at::Tensor& sizes, bool may_be_learned);
  // Takes all records into the header, and the sizes given.
  void describe(const std::vector<gradient>& modes, const rows_table& given, bool records);

  // Whether so much data rides along with the header; whether every rank's does.
  bool is_inlined(std::int64_t bytes) const;
  bool are_inlined(std::span<const std::int64_t> bytes) const;
  // Place one, and all.
  layout place(std::size_t tensor, std::vector<std::int64_t> rows);
  bundle bundle_of(const rows_table& rows, const std::vector<gradient>& modes);

 private:
  collective run_;
  at::TensorList tensors_;
  at::IntArrayRef dims_;
};

// What was given once for all tensors, once for each.
std::vector<std::int64_t> one_each(at::IntArrayRef dims, std::size_t tensors);
std::vector<at::Tensor> contiguous_all(at::TensorList x);
rows_table rows_table_of(const heard& said);
// (tensors, ranks), int64 on the CPU.
at::Tensor sizes_tensor(const rows_table& rows);

// What the C++ calls are given, made one for each tensor.
struct each_tensor {
  std::int64_t world = 1;
  std::vector<std::int64_t> dims;
  std::vector<std::optional<at::Tensor>> rows;  // int64, CPU
  std::optional<at::Tensor> sizes;              // (tensors, ranks), where any are given

  bool are_all_given() const;
};
// Refuses, for all ranks that listen, what never reaches an op. `others` is how many further values were given, `later`
// says that the call is only started.
each_tensor each_checked(arguments with, at::TensorList tensors, const per_tensor<std::int64_t>& dim,
                         const per_tensor<std::optional<at::Tensor>>& sizes, std::size_t others, bool later = false);
// "all_gather_coalesced: tensor 1"
std::string title_of(operation op, std::size_t tensor);

}  // namespace sheaf
