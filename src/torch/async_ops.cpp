// SPDX-License-Identifier: MIT
// Every op's asynchronous call: the plain op, its backward, and what one rank can see wrong by itself.
#include "torch/async_ops.hpp"

#include <numeric>
#include <sheaf/all_gather.hpp>
#include <sheaf/error.hpp>
#include <sheaf/reduce_scatter.hpp>

#include "torch/async.hpp"
#include "torch/check.hpp"
#include "torch/device.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"
#include "torch/ops.hpp"
#include "torch/refusal.hpp"

namespace sheaf {
namespace async {
namespace {

// The first that is one.
refusal first_of(std::initializer_list<std::function<refusal()>> checks) {
  for (const auto& check : checks) {
    if (auto why = check()) return why;
  }
  return std::nullopt;
}

refusal check_carried_by(const engine& moves, const at::Tensor& x) {
  return check_carried(x, moves.carries(device_from(x.device().type())) != carriage::none);
}

}  // namespace

std::shared_ptr<call_under_way> start_all_gather(const at::Tensor& x, const std::optional<at::Tensor>& sizes,
                                                 std::int64_t dim, std::int64_t world, const std::string& grad,
                                                 const std::string& group, timeout_argument timeout) {
  const auto moves = translated([&] { return find_engine(group); });
  const auto rows = sizes ? std::optional(rows_as_given(*sizes).clone()) : std::nullopt;
  const auto why =
      first_of({[&] { return check_dispatched(x); }, [&] { return check_tensor(x, dim); },
                [&] { return check_carried_by(*moves, x); },
                [&] { return rows ? check_sizes(*rows, moves->world()) : std::nullopt; },
                [&] { return rows ? check_own_size(sizes_of(*rows), moves->rank(), x.size(dim)) : std::nullopt; }});
  return start({
      .with = {.op = operation::all_gather,
               .mode = grad,
               .group = group,
               .world = world,
               .timeout = timeout,
               .sized = sizes.has_value()},
      .tensors = {x},
      .why = why,
      .run = [=](const tensor_list& given) -> tensor_list {
        if (!rows) {
          auto [gathered, learned] = ops::all_gather(given[0], dim, world, grad, group, timeout);
          return {std::move(gathered), std::move(learned)};
        }
        const auto total = rows->sum().item<std::int64_t>();
        return {ops::all_gather_sized(given[0], *rows, total, dim, world, "sum", group, grad, timeout, 0, 0), *rows};
      },
      .back = [=, own = why ? 0 : x.size(dim)](const tensor_list& results,
                                               const outcome& said) -> std::vector<backward> {
        const bool stays = grad == name(gradient::own);
        const auto origin = said.sequence;
        return {{.with = {.op = operation::reduce_scatter,
                          .mode = grad,
                          .group = group,
                          .world = world,
                          .timeout = timeout,
                          .sized = true,
                          .local = stays,
                          .origin = origin},
                 .run = [=, counts = results[1].clone()](const tensor_list& given) -> tensor_list {
                   return {ops::reduce_scatter_sized(given[0], counts, own, dim, world, grad, group, timeout, origin)};
                 },
                 .joins = !stays && !rows && said.any_rank_records}};
      },
  });
}

std::shared_ptr<call_under_way> start_reduce_scatter(const at::Tensor& y, const at::Tensor& sizes, std::int64_t dim,
                                                     std::int64_t world, const std::string& mode,
                                                     const std::string& group, timeout_argument timeout) {
  const auto moves = translated([&] { return find_engine(group); });
  const auto rows = rows_as_given(sizes).clone();
  const auto why =
      first_of({[&] { return check_dispatched(y); }, [&] { return check_tensor(y, dim); },
                [&] { return check_carried_by(*moves, y); }, [&] { return check_sizes(rows, moves->world()); },
                [&] { return check_total(sizes_of(rows), y.size(dim), "the tensor has"); },
                [&] { return check_reduction(y, mode == name(gradient::mean) ? gradient::mean : gradient::sum); }});
  const auto own = why ? 0 : sizes_of(rows)[moves->rank()];
  return start({
      .with = {.op = operation::reduce_scatter,
               .mode = mode,
               .group = group,
               .world = world,
               .timeout = timeout,
               .sized = true},
      .tensors = {y},
      .why = why,
      .run = [=](const tensor_list& given) -> tensor_list {
        return {ops::reduce_scatter_sized(given[0], rows, own, dim, world, mode, group, timeout, 0)};
      },
      .back = [=, total = why ? 0 : y.size(dim)](const tensor_list&, const outcome& said) -> std::vector<backward> {
        const auto origin = said.sequence;
        return {{.with = {.op = operation::all_gather,
                          .mode = mode,
                          .group = group,
                          .world = world,
                          .timeout = timeout,
                          .sized = true,
                          .origin = origin},
                 .run = [=](const tensor_list& given) -> tensor_list {
                   return {ops::all_gather_sized(given[0], rows, total, dim, world, mode, group, std::nullopt, timeout,
                                                 origin, 0)};
                 }}};
      },
  });
}

}  // namespace async

handle<gathered> all_gather_async(const at::Tensor& x, const all_gather_options& options) {
  if (options.valid) {
    translated([&] {
      const std::string why = "async_op and valid cannot both be given";
      if (options.group.world() == 1) throw value_error("all_gather: " + why);
      refuse_for_all(why, arguments_of(operation::all_gather, options, options.sizes.has_value()), /*later=*/true);
    });
  }
  if (options.group.world() == 1) {
    auto [tensor, sizes] = all_gather(x, options);
    return handle<gathered>(async::finished({std::move(tensor), std::move(sizes)}));
  }
  return handle<gathered>(async::start_all_gather(x, options.sizes, options.dim, options.group.world(),
                                                  std::string(name(options.grad)), options.group.name(),
                                                  seconds_of(options.timeout)));
}

handle<at::Tensor> reduce_scatter_async(const at::Tensor& y, const at::Tensor& sizes,
                                        const reduce_scatter_options& options) {
  if (options.group.world() == 1) return handle<at::Tensor>(async::finished({reduce_scatter(y, sizes, options)}));
  return handle<at::Tensor>(async::start_reduce_scatter(y, sizes, options.dim, options.group.world(),
                                                        options.op == reduce_op::mean ? "mean" : "sum",
                                                        options.group.name(), seconds_of(options.timeout)));
}

}  // namespace sheaf
