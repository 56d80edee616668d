// SPDX-License-Identifier: MIT
// Asynchronous calls of several tensors: the plain op, its backward for those that travel and for each that stays.
#include <ATen/ops/stack.h>

#include <algorithm>
#include <sheaf/all_gather_coalesced.hpp>
#include <sheaf/reduce_scatter_coalesced.hpp>

#include "torch/async.hpp"
#include "torch/async_ops.hpp"
#include "torch/coalesced.hpp"
#include "torch/coalesced_autograd.hpp"
#include "torch/device.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"

namespace sheaf {
namespace async {
namespace {

using autograd::as_list;
using mode_texts = std::vector<std::string>;

// What a call was told of each tensor.
struct told {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> extents;  // rows of what was given, which are those of its gradient
  mode_texts modes;
  std::vector<bool> needs;  // this rank needs its gradient
};

told told_of(at::TensorList tensors, at::IntArrayRef dims, const mode_list& modes, bool refused) {
  told all{.dims = dims.vec(), .modes = modes.vec()};
  for (std::size_t i = 0; i < tensors.size() && !refused; ++i) {
    all.extents.push_back(tensors[i].size(dims[i]));
    all.needs.push_back(tensors[i].requires_grad());
  }
  return all;
}

// The same of some of them, as the ops take it.
struct told_some {
  std::vector<std::int64_t> dims;
  std::vector<c10::SymInt> extents;
  mode_texts modes;
};

told_some some_of(const told& all, const std::vector<std::size_t>& which) {
  told_some some;
  for (const auto i : which) {
    some.dims.push_back(all.dims[i]);
    some.extents.emplace_back(all.extents[i]);
    some.modes.push_back(all.modes[i]);
  }
  return some;
}

refusal check_call(const engine& moves, at::TensorList tensors, at::IntArrayRef dims, const mode_list& modes,
                   bool may_be_own) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto why = check_dispatched(tensors[i])) return of_tensor(i, why);
  }
  const auto is_carried = [&](const at::Tensor& x) {
    return moves.carries(device_from(x.device().type())) != carriage::none;
  };
  if (auto why = check_each(tensors, dims, is_carried)) return why;
  return check_modes(modes, tensors.size(), may_be_own);
}

refusal check_gather(const engine& moves, at::TensorList x, const std::optional<at::Tensor>& sizes,
                     at::IntArrayRef dims) {
  if (!sizes) return std::nullopt;
  if (auto why = check_table(*sizes, x.size(), moves.world(), true)) return why;
  const auto rows = table_of(*sizes);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (rows[i].empty()) continue;
    if (const auto why = check_own_size(rows[i], moves.rank(), x[i].size(dims[i]))) return of_tensor(i, why);
  }
  return std::nullopt;
}

refusal check_scatter(const engine& moves, at::TensorList y, const at::Tensor& sizes, at::IntArrayRef dims,
                      const mode_list& modes) {
  if (auto why = check_table(sizes, y.size(), moves.world(), false)) return why;
  const auto rows = table_of(sizes);
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (const auto why = check_total(rows[i], y[i].size(dims[i]), "the tensor has")) return of_tensor(i, why);
    const auto mode = gradient_from(std::string(modes.get(i)));
    if (const auto why = check_reduction(y[i], mode)) return of_tensor(i, why);
  }
  return std::nullopt;
}

// Gathered tensors, then the sizes of each.
tensor_list with_rows(tensor_list results, const at::Tensor& sizes) {
  for (auto& row : sizes.unbind(0)) results.push_back(std::move(row));
  return results;
}

}  // namespace

std::shared_ptr<call_under_way> start_all_gather_coalesced(at::TensorList x, const std::optional<at::Tensor>& sizes,
                                                           at::IntArrayRef dim, std::int64_t world,
                                                           const mode_list& grad, const std::string& group,
                                                           timeout_argument timeout) {
  const auto moves = translated([&] { return find_engine(group); });
  const auto table = sizes ? std::optional(rows_as_given(*sizes).clone()) : std::nullopt;
  auto why = check_call(*moves, x, dim, grad, true);
  if (!why) why = check_gather(*moves, x, table, dim);
  const auto all = told_of(x, dim, grad, why.has_value());
  const bool sized = table && are_all_given(*table);
  std::vector<bool> stays;
  for (const auto& mode : all.modes) stays.push_back(mode == name(gradient::own));
  const auto back_of = [=](const tensor_list& results, const std::vector<std::size_t>& which,
                           std::int64_t origin) -> backward {
    tensor_list counts;
    for (const auto i : which) counts.push_back(results[all.dims.size() + i]);
    return {.with = {.op = operation::reduce_scatter_coalesced,
                     .group = group,
                     .world = world,
                     .timeout = timeout,
                     .sized = true,
                     .origin = origin},
            .run =
                [=, some = some_of(all, which), counts = at::stack(counts)](const tensor_list& given) {
                  return ops::reduce_scatter_coalesced_sized(given, counts, some.extents, some.dims, world,
                                                             as_list(some.modes), group, timeout, origin);
                },
            .joins = true,
            .of = which};
  };
  const auto own_of = [=](const tensor_list& results, std::size_t i) -> backward {
    return {.with = {.op = operation::reduce_scatter,
                     .mode = "own",
                     .group = group,
                     .world = world,
                     .timeout = timeout,
                     .sized = true,
                     .local = true},
            .run = [=, dim = all.dims[i], own = all.extents[i],
                    counts = results[all.dims.size() + i].clone()](const tensor_list& given) -> tensor_list {
              return {ops::reduce_scatter_sized(given[0], counts, own, dim, world, "own", group, timeout, 0)};
            },
            .of = {i}};
  };
  return start({
      .with =
          {.op = operation::all_gather_coalesced, .group = group, .world = world, .timeout = timeout, .sized = sized},
      .tensors = x.vec(),
      .why = why,
      .run = [=](const tensor_list& given) -> tensor_list {
        const auto modes = as_list(all.modes);
        if (!sized) {
          auto [gathered, learned] = ops::all_gather_coalesced(given, table, all.dims, world, modes, group, timeout);
          std::ranges::move(learned, std::back_inserter(gathered));
          return std::move(gathered);
        }
        const auto sums = as_list(mode_texts(given.size(), "sum"));
        std::vector<c10::SymInt> totals;
        for (const auto total : sizes_of(table->sum(1))) totals.emplace_back(total);
        return with_rows(
            ops::all_gather_coalesced_sized(given, *table, totals, all.dims, world, sums, group, modes, timeout, 0),
            *table);
      },
      .back = [=](const tensor_list& results, const outcome& said) -> std::vector<backward> {
        std::vector<backward> backs;
        std::vector<std::size_t> travel;
        for (std::size_t i = 0; i < stays.size(); ++i) {
          const auto& others = said.any_rank_records_of;
          if (stays[i]) {
            backs.push_back(own_of(results, i));
          } else if (all.needs[i] || (!sized && i < others.size() && others[i])) {
            travel.push_back(i);
          }
        }
        if (!travel.empty()) backs.push_back(back_of(results, travel, said.sequence));
        return backs;
      },
      .stays = stays,
  });
}

std::shared_ptr<call_under_way> start_reduce_scatter_coalesced(at::TensorList y, const at::Tensor& sizes,
                                                               at::IntArrayRef dim, std::int64_t world,
                                                               const mode_list& mode, const std::string& group,
                                                               timeout_argument timeout) {
  const auto moves = translated([&] { return find_engine(group); });
  const auto table = rows_as_given(sizes).clone();
  auto why = check_call(*moves, y, dim, mode, false);
  if (!why) why = check_scatter(*moves, y, table, dim, mode);
  const auto all = told_of(y, dim, mode, why.has_value());
  std::vector<c10::SymInt> own;
  if (!why) {
    for (const auto& rows : table_of(table)) own.emplace_back(rows[moves->rank()]);
  }
  return start({
      .with = {.op = operation::reduce_scatter_coalesced,
               .group = group,
               .world = world,
               .timeout = timeout,
               .sized = true},
      .tensors = y.vec(),
      .why = why,
      .run =
          [=](const tensor_list& given) {
            return ops::reduce_scatter_coalesced_sized(given, table, own, all.dims, world, as_list(all.modes), group,
                                                       timeout, 0);
          },
      .back = [=](const tensor_list&, const outcome& said) -> std::vector<backward> {
        std::vector<std::size_t> which;
        for (std::size_t i = 0; i < all.needs.size(); ++i) {
          if (all.needs[i]) which.push_back(i);
        }
        if (which.empty()) return {};
        const auto origin = said.sequence;
        return {{.with = {.op = operation::all_gather_coalesced,
                          .group = group,
                          .world = world,
                          .timeout = timeout,
                          .sized = true,
                          .origin = origin},
                 .run =
                     [=, some = some_of(all, which),
                      counts = autograd::rows_of_some(table, which)](const tensor_list& given) {
                       const auto modes = as_list(some.modes);
                       return ops::all_gather_coalesced_sized(given, counts, some.extents, some.dims, world, modes,
                                                              group, modes, timeout, origin);
                     },
                 .of = which}};
      },
  });
}

}  // namespace async

handle<std::vector<gathered>> all_gather_coalesced_async(at::TensorList x,
                                                         const all_gather_coalesced_options& options) {
  if (options.group.world() == 1) {
    async::tensor_list results, sizes;
    for (auto& one : all_gather_coalesced(x, options)) {
      results.push_back(std::move(one.tensor));
      sizes.push_back(std::move(one.sizes));
    }
    results.insert(results.end(), sizes.begin(), sizes.end());
    return handle<std::vector<gathered>>(async::finished(std::move(results)));
  }
  const auto each = translated([&] {
    return each_checked(arguments_of(operation::all_gather_coalesced, options), x, options.dim, options.sizes,
                        options.grad.count_for(x.size()), true);
  });
  mode_list grad;
  for (std::size_t i = 0; i < x.size(); ++i) grad.push_back(std::string(name(options.grad[i])));
  return handle<std::vector<gathered>>(async::start_all_gather_coalesced(
      x, each.sizes, each.dims, each.world, grad, options.group.name(), seconds_of(options.timeout)));
}

handle<std::vector<at::Tensor>> reduce_scatter_coalesced_async(at::TensorList y, const per_tensor<at::Tensor>& sizes,
                                                               const reduce_scatter_coalesced_options& options) {
  if (options.group.world() == 1) {
    return handle<std::vector<at::Tensor>>(async::finished(reduce_scatter_coalesced(y, sizes, options)));
  }
  std::vector<std::optional<at::Tensor>> given;
  for (std::size_t i = 0; i < sizes.count_for(y.size()); ++i) given.emplace_back(sizes[i]);
  const auto each = translated([&] {
    return each_checked(arguments_of(operation::reduce_scatter_coalesced, options), y, options.dim, given,
                        options.op.count_for(y.size()), true);
  });
  mode_list mode;
  for (std::size_t i = 0; i < y.size(); ++i) mode.push_back(options.op[i] == reduce_op::mean ? "mean" : "sum");
  return handle<std::vector<at::Tensor>>(async::start_reduce_scatter_coalesced(
      y, *each.sizes, each.dims, each.world, mode, options.group.name(), seconds_of(options.timeout)));
}

}  // namespace sheaf
