// SPDX-License-Identifier: MIT
// Every schema, and what stands behind it on which key.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <sheaf/error.hpp>
#include <string_view>

#include "torch/async_ops.hpp"
#include "torch/collective.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"
#include "torch/ops.hpp"
#include "torch/refusal.hpp"

namespace sheaf {
namespace {

operation operation_from(std::string_view text) {
  for (const auto op : {operation::all_gather, operation::reduce_scatter, operation::gather_sizes,
                        operation::all_gather_coalesced, operation::reduce_scatter_coalesced}) {
    if (text == name(op)) return op;
  }
  throw value_error("there is no op " + std::string(text));
}

// For callers above the ops that refuse what never reaches one (a tensor subclass): the peers hear of it all the same.
void refuse(std::string op, std::string why, std::string group, bool sized, bool later, std::int64_t follows,
            timeout_argument timeout) {
  translated([&] {
    const auto kind = operation_from(op);
    refuse_for_all(why, {.op = kind, .group = group, .timeout = timeout, .sized = sized, .follows = follows}, later);
  });
}

std::tuple<std::string, std::string> engine_of(std::string group) {
  return translated([&] { return describe_engine(group); });
}

at::Tensor alone_op(const at::Tensor& x, const std::optional<at::Tensor>& sizes, std::int64_t dim, std::string op,
                    std::string mode, timeout_argument timeout) {
  return translated([&] { return alone(op, x, sizes, dim, gradient_from(mode), timeout); });
}

// A call under way, as Python holds it.
struct async_handle : torch::CustomClassHolder {
  explicit async_handle(std::shared_ptr<call_under_way> of) : call(std::move(of)) {}
  const std::shared_ptr<call_under_way> call;
};
using handle_pointer = c10::intrusive_ptr<async_handle>;

handle_pointer start_all_gather(const at::Tensor& x, const std::optional<at::Tensor>& sizes, std::int64_t dim,
                                std::int64_t world, std::string grad, std::string group, timeout_argument timeout) {
  return c10::make_intrusive<async_handle>(async::start_all_gather(x, sizes, dim, world, grad, group, timeout));
}

handle_pointer start_reduce_scatter(const at::Tensor& y, const at::Tensor& sizes, std::int64_t dim, std::int64_t world,
                                    std::string mode, std::string group, timeout_argument timeout) {
  return c10::make_intrusive<async_handle>(async::start_reduce_scatter(y, sizes, dim, world, mode, group, timeout));
}

handle_pointer start_all_gather_coalesced(at::TensorList x, const std::optional<at::Tensor>& sizes, at::IntArrayRef dim,
                                          std::int64_t world, mode_list grad, std::string group,
                                          timeout_argument timeout) {
  return c10::make_intrusive<async_handle>(
      async::start_all_gather_coalesced(x, sizes, dim, world, grad, group, timeout));
}

handle_pointer start_reduce_scatter_coalesced(at::TensorList y, const at::Tensor& sizes, at::IntArrayRef dim,
                                              std::int64_t world, mode_list mode, std::string group,
                                              timeout_argument timeout) {
  return c10::make_intrusive<async_handle>(
      async::start_reduce_scatter_coalesced(y, sizes, dim, world, mode, group, timeout));
}

std::vector<at::Tensor> wait_for(const handle_pointer& one) { return one->call->wait(); }

bool is_done(const handle_pointer& one) { return one->call->done(); }

}  // namespace

namespace ops {

template <class Result, class... Arguments, Result (*kernel)(Arguments...)>
Result dispatched<kernel>::operator()(Arguments... arguments) const {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Arguments...)>();
  return op.call(std::forward<Arguments>(arguments)...);
}

template struct dispatched<kernels::all_gather>;
template struct dispatched<kernels::all_gather_sized>;
template struct dispatched<kernels::reduce_scatter_sized>;
template struct dispatched<kernels::gather_sizes>;
template struct dispatched<kernels::all_gather_coalesced>;
template struct dispatched<kernels::all_gather_coalesced_sized>;
template struct dispatched<kernels::reduce_scatter_coalesced_sized>;
template struct dispatched<kernels::gather_sizes_coalesced>;
template struct dispatched<kernels::numbered>;
template struct dispatched<kernels::prepare_valid>;
template struct dispatched<kernels::clamped>;
template struct dispatched<kernels::compact>;
template struct dispatched<kernels::spread>;

}  // namespace ops

TORCH_LIBRARY(sheaf, library) {
  library.def(
      "all_gather(Tensor x, int dim, int world, str grad, str group, *, float? timeout=None) -> (Tensor, Tensor)");
  library.def(
      "all_gather_sized(Tensor x, Tensor sizes, SymInt total, int dim, int world, str mode, str group, *, "
      "str? grad=None, float? timeout=None, int origin=0, int follows=0) -> Tensor");
  library.def(
      "reduce_scatter_sized(Tensor y, Tensor sizes, SymInt own, int dim, int world, str mode, str group, *, "
      "float? timeout=None, int origin=0) -> Tensor");
  library.def(
      "gather_sizes(Tensor x, int dim, int world, str group, *, float? timeout=None, str grad=\"sum\", int follows=0) "
      "-> Tensor");
  library.def(
      "all_gather_coalesced(Tensor[] x, Tensor? sizes, int[] dim, int world, str[] grad, str group, *, "
      "float? timeout=None) -> (Tensor[], Tensor[])");
  library.def(
      "all_gather_coalesced_sized(Tensor[] x, Tensor sizes, SymInt[] total, int[] dim, int world, str[] mode, "
      "str group, str[] grad, *, float? timeout=None, int origin=0) -> Tensor[]");
  library.def(
      "reduce_scatter_coalesced_sized(Tensor[] y, Tensor sizes, SymInt[] own, int[] dim, int world, str[] mode, "
      "str group, *, float? timeout=None, int origin=0) -> Tensor[]");
  library.def(
      "gather_sizes_coalesced(Tensor[] x, int[] dim, int world, str group, *, float? timeout=None, int follows=0) "
      "-> Tensor");
  library.def("numbered(Tensor sizes) -> Tensor");
  library.def(
      "prepare_valid(Tensor x, int dim, int world, str grad, str group, bool look, *, float? timeout=None) -> Tensor");
  library.def("clamped(Tensor given, SymInt capacity, str group) -> Tensor");
  library.def("compact(Tensor blocks, Tensor sizes, int dim) -> Tensor");
  library.def("spread(Tensor rows, Tensor sizes, int dim) -> Tensor");
  library.class_<async_handle>("Handle");
  library.def(
      "start_all_gather(Tensor x, Tensor? sizes, int dim, int world, str grad, str group, *, float? timeout=None) -> "
      "__torch__.torch.classes.sheaf.Handle",
      start_all_gather);
  library.def(
      "start_reduce_scatter(Tensor y, Tensor sizes, int dim, int world, str mode, str group, *, float? timeout=None) "
      "-> __torch__.torch.classes.sheaf.Handle",
      start_reduce_scatter);
  library.def(
      "start_all_gather_coalesced(Tensor[] x, Tensor? sizes, int[] dim, int world, str[] grad, str group, *, "
      "float? timeout=None) -> __torch__.torch.classes.sheaf.Handle",
      start_all_gather_coalesced);
  library.def(
      "start_reduce_scatter_coalesced(Tensor[] y, Tensor sizes, int[] dim, int world, str[] mode, str group, *, "
      "float? timeout=None) -> __torch__.torch.classes.sheaf.Handle",
      start_reduce_scatter_coalesced);
  library.def("wait(__torch__.torch.classes.sheaf.Handle call) -> Tensor[]", wait_for);
  library.def("done(__torch__.torch.classes.sheaf.Handle call) -> bool", is_done);
  library.def(
      "refuse(str op, str why, str group, bool sized, bool later=False, int follows=0, *, float? timeout=None) -> ()",
      refuse);
  library.def("engine(str group) -> (str, str)", engine_of);
  library.def("alone(Tensor x, Tensor? sizes, int dim, str op, str mode, *, float? timeout=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(sheaf, CompositeExplicitAutograd, library) {
  library.impl("all_gather", kernels::all_gather);
  library.impl("all_gather_sized", kernels::all_gather_sized);
  library.impl("reduce_scatter_sized", kernels::reduce_scatter_sized);
  library.impl("gather_sizes", kernels::gather_sizes);
  library.impl("all_gather_coalesced", kernels::all_gather_coalesced);
  library.impl("all_gather_coalesced_sized", kernels::all_gather_coalesced_sized);
  library.impl("reduce_scatter_coalesced_sized", kernels::reduce_scatter_coalesced_sized);
  library.impl("gather_sizes_coalesced", kernels::gather_sizes_coalesced);
  library.impl("numbered", kernels::numbered);
  library.impl("prepare_valid", kernels::prepare_valid);
  library.impl("clamped", kernels::clamped);
  library.impl("compact", kernels::compact);
  library.impl("spread", kernels::spread);
  library.impl("alone", alone_op);
}

TORCH_LIBRARY_IMPL(sheaf, Autograd, library) {
  library.impl("all_gather", autograd::all_gather);
  library.impl("all_gather_sized", autograd::all_gather_sized);
  library.impl("reduce_scatter_sized", autograd::reduce_scatter_sized);
  library.impl("all_gather_coalesced", autograd::all_gather_coalesced);
  library.impl("all_gather_coalesced_sized", autograd::all_gather_coalesced_sized);
  library.impl("reduce_scatter_coalesced_sized", autograd::reduce_scatter_coalesced_sized);
  library.impl("compact", autograd::compact);
  library.impl("spread", autograd::spread);
}

}  // namespace sheaf
