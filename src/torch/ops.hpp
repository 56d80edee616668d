// SPDX-License-Identifier: MIT
// Every op as a typed call through the dispatcher, and the kernels and autograd that library.cpp registers.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace sheaf {

using timeout_argument = std::optional<double>;
using mode_list = c10::List<std::string>;                                        // one per tensor
using two_lists = std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>>;  // gathered tensors, their sizes

namespace kernels {

std::tuple<at::Tensor, at::Tensor> all_gather(const at::Tensor& x, std::int64_t dim, std::int64_t world,
                                              std::string grad, std::string group, timeout_argument timeout);
at::Tensor all_gather_sized(const at::Tensor& x, const at::Tensor& sizes, c10::SymInt total, std::int64_t dim,
                            std::int64_t world, std::string mode, std::string group, std::optional<std::string> grad,
                            timeout_argument timeout, std::int64_t origin, std::int64_t follows);
at::Tensor reduce_scatter_sized(const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own, std::int64_t dim,
                                std::int64_t world, std::string mode, std::string group, timeout_argument timeout,
                                std::int64_t origin);
at::Tensor gather_sizes(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string group,
                        timeout_argument timeout, std::string grad, std::int64_t follows);
two_lists all_gather_coalesced(at::TensorList x, const std::optional<at::Tensor>& sizes, at::IntArrayRef dim,
                               std::int64_t world, mode_list grad, std::string group, timeout_argument timeout);
std::vector<at::Tensor> all_gather_coalesced_sized(at::TensorList x, const at::Tensor& sizes, c10::SymIntArrayRef total,
                                                   at::IntArrayRef dim, std::int64_t world, mode_list mode,
                                                   std::string group, mode_list grad, timeout_argument timeout,
                                                   std::int64_t origin);
std::vector<at::Tensor> reduce_scatter_coalesced_sized(at::TensorList y, const at::Tensor& sizes,
                                                       c10::SymIntArrayRef own, at::IntArrayRef dim, std::int64_t world,
                                                       mode_list mode, std::string group, timeout_argument timeout,
                                                       std::int64_t origin);
at::Tensor gather_sizes_coalesced(at::TensorList x, at::IntArrayRef dim, std::int64_t world, std::string group,
                                  timeout_argument timeout, std::int64_t follows);
// Sizes, and behind them, in one row more, the number of the last call that this thread made: what a compiled backward
// is given, since its trace came before the call.
at::Tensor numbered(const at::Tensor& sizes);
// Of static shapes: every rank's rows, which must be the same, as `grad` must; compared on the host. A call that is
// captured compares nothing: one like it came first. `look`: waits for the device, to raise if an earlier count was too
// large; where one rank sees one, all raise. Nobody needs what it returns but compilers, which keep the order of ops by
// their results.
at::Tensor prepare_valid(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string grad, std::string group,
                         bool look, timeout_argument timeout);
// Counts within a buffer's rows. Where one was not, the next prepare_valid that looks, of this group and device,
// raises. All groups of one rank are the same.
at::Tensor clamped(const at::Tensor& given, c10::SymInt capacity, std::string group);
// Of blocks of equal rows, one after another along `dim`, the first sizes[r] rows of each, then zeros.
at::Tensor compact(const at::Tensor& blocks, const at::Tensor& sizes, std::int64_t dim);
// Its adjoint.
at::Tensor spread(const at::Tensor& rows, const at::Tensor& sizes, std::int64_t dim);

}  // namespace kernels

namespace ops {  // the same, through the dispatcher

template <auto* kernel>
struct dispatched;

template <class Result, class... Arguments, Result (*kernel)(Arguments...)>
struct dispatched<kernel> {
  Result operator()(Arguments... arguments) const;  // made in library.cpp
  const char* name;
};

inline constexpr dispatched<kernels::all_gather> all_gather{"sheaf::all_gather"};
inline constexpr dispatched<kernels::all_gather_sized> all_gather_sized{"sheaf::all_gather_sized"};
inline constexpr dispatched<kernels::reduce_scatter_sized> reduce_scatter_sized{"sheaf::reduce_scatter_sized"};
inline constexpr dispatched<kernels::gather_sizes> gather_sizes{"sheaf::gather_sizes"};
inline constexpr dispatched<kernels::all_gather_coalesced> all_gather_coalesced{"sheaf::all_gather_coalesced"};
inline constexpr dispatched<kernels::all_gather_coalesced_sized> all_gather_coalesced_sized{
    "sheaf::all_gather_coalesced_sized"};
inline constexpr dispatched<kernels::reduce_scatter_coalesced_sized> reduce_scatter_coalesced_sized{
    "sheaf::reduce_scatter_coalesced_sized"};
inline constexpr dispatched<kernels::gather_sizes_coalesced> gather_sizes_coalesced{"sheaf::gather_sizes_coalesced"};
inline constexpr dispatched<kernels::numbered> numbered{"sheaf::numbered"};
inline constexpr dispatched<kernels::prepare_valid> prepare_valid{"sheaf::prepare_valid"};
inline constexpr dispatched<kernels::clamped> clamped{"sheaf::clamped"};
inline constexpr dispatched<kernels::compact> compact{"sheaf::compact"};
inline constexpr dispatched<kernels::spread> spread{"sheaf::spread"};

}  // namespace ops

namespace autograd {  // their autograd

decltype(kernels::all_gather) all_gather;
decltype(kernels::all_gather_sized) all_gather_sized;
decltype(kernels::reduce_scatter_sized) reduce_scatter_sized;
decltype(kernels::all_gather_coalesced) all_gather_coalesced;
decltype(kernels::all_gather_coalesced_sized) all_gather_coalesced_sized;
decltype(kernels::reduce_scatter_coalesced_sized) reduce_scatter_coalesced_sized;
decltype(kernels::compact) compact;
decltype(kernels::spread) spread;

// The result of a gather of mode `own`, which is there already, tied to its backward on this rank.
at::Tensor tie_own(const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim, std::int64_t world,
                   const std::string& group, const at::Tensor& gathered);

}  // namespace autograd
}  // namespace sheaf
