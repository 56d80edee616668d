// SPDX-License-Identifier: MIT
#include "torch/coalesced.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <ranges>
#include <sheaf/error.hpp>

#include "core/text.hpp"
#include "core/verdict.hpp"
#include "torch/coalesced_autograd.hpp"
#include "torch/refusal.hpp"

namespace sheaf {
namespace {

refusal check_count(const char* what, std::size_t got, std::size_t tensors) {
  if (got == tensors) return std::nullopt;
  return std::string(what) + ": expected one for each of " + std::to_string(tensors) + " tensors, got " +
         std::to_string(got);
}

bool is_learned(const at::Tensor& row) { return row.numel() > 0 && sizes_of(row).front() == not_given; }

std::string shown(const rows_table& given) {
  std::string text;
  for (const auto& rows : given) text += (text.empty() ? "" : ", ") + (rows.empty() ? "learned" : list(rows));
  return "[" + text + "]";
}

refusal check_device(const at::Tensor& x, const at::Tensor& first) {
  if (!x.defined() || !first.defined() || x.device() == first.device()) return std::nullopt;
  return "all tensors of one call must be on one device, got " + first.device().str() + " and " + x.device().str();
}

}  // namespace

refusal of_tensor(std::size_t index, const refusal& why) {
  return why ? refusal("tensor " + std::to_string(index) + ": " + *why) : why;
}

refusal check_each(at::TensorList tensors, at::IntArrayRef dims,
                   const std::function<bool(const at::Tensor&)>& is_carried) {
  if (tensors.empty()) return "no tensors were given";
  if (tensors.size() > max_tensors) {
    return "one call takes at most " + std::to_string(max_tensors) + " tensors, got " + std::to_string(tensors.size());
  }
  if (auto why = check_count("dim", dims.size(), tensors.size())) return why;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto why = check_tensor(tensors[i], dims[i])) return of_tensor(i, why);
    if (const auto why = check_carried(tensors[i], is_carried(tensors[i]))) return of_tensor(i, why);
    if (const auto why = check_device(tensors[i], tensors[0])) return of_tensor(i, why);
  }
  return std::nullopt;
}

refusal check_modes(const mode_list& texts, std::size_t tensors, bool may_be_own) {
  if (auto why = check_count(may_be_own ? "grad" : "op", texts.size(), tensors)) return why;
  for (std::size_t i = 0; i < tensors; ++i) {
    try {
      const auto mode = gradient_from(std::string(texts.get(i)));
      if (!may_be_own && mode == gradient::own) return of_tensor(i, "expected \"sum\" or \"mean\", got \"own\"");
    } catch (const value_error& error) {
      return of_tensor(i, error.what());
    }
  }
  return std::nullopt;
}

refusal check_table(const at::Tensor& sizes, std::size_t tensors, int world, bool may_be_learned) {
  if (!sizes.defined() || sizes.dim() != 2 || sizes.size(0) != static_cast<std::int64_t>(tensors)) {
    return "sizes must be one row of integers for each of " + std::to_string(tensors) + " tensors";
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    const auto row = sizes.select(0, static_cast<std::int64_t>(i));
    if (may_be_learned && is_learned(row)) continue;
    if (const auto why = check_sizes(row, world)) return of_tensor(i, why);
  }
  return std::nullopt;
}

rows_table table_of(const at::Tensor& sizes) {
  rows_table table;
  for (const auto& row : sizes.unbind(0)) {
    table.push_back(is_learned(row) ? std::vector<std::int64_t>() : sizes_of(row));
  }
  return table;
}

bool are_all_given(const at::Tensor& sizes) {
  if (!sizes.defined() || sizes.dim() != 2 || sizes.scalar_type() != at::kLong) return true;
  return std::ranges::none_of(sizes.unbind(0), is_learned);
}

coalesced::coalesced(const arguments& with, at::TensorList tensors, at::IntArrayRef dims)
    : run_(with), tensors_(tensors), dims_(dims) {
  const auto carried = [&](const at::Tensor& x) { return x.defined() ? run_.look_at(x) : carriage::none; };
  const auto why = check_each(tensors, dims, [&](const at::Tensor& x) { return carried(x) != carriage::none; });
  if (why) {
    // Refused on several devices, it is a call of the one that others may carry on with.
    for (const auto& x : tensors) {
      if (carried(x) != carriage::host) break;
    }
    run_.refuse_if(why);
  }
  run_.refuse_if_out_of_step();
}

void coalesced::refuse_unless_each(const char* what, std::size_t got) {
  run_.refuse_if(check_count(what, got, count()));
}

std::vector<gradient> coalesced::modes(const mode_list& texts, bool may_be_own) {
  run_.refuse_if(check_modes(texts, texts.size() == 1 ? 1 : count(), may_be_own));
  std::vector<gradient> modes;
  modes.reserve(count());
  for (std::size_t i = 0; i < texts.size(); ++i) modes.push_back(gradient_from(std::string(texts.get(i))));
  modes.resize(count(), modes.front());
  return modes;
}

rows_table coalesced::given(const at::Tensor& sizes, bool may_be_learned) {
  run_.refuse_if(check_table(sizes, count(), run_.world(), may_be_learned));
  return table_of(sizes);
}

void coalesced::describe(const std::vector<gradient>& modes, const rows_table& given, bool records) {
  std::vector<std::int64_t> all;
  run_.expect(count());
  for (std::size_t i = 0; i < count(); ++i) {
    auto tensor = record_of(tensors_[i], dims_[i]);
    tensor.mode = modes[i];
    tensor.records_gradient = records ? recording_of(tensors_[i]) : recording::off;
    tensor.sized = !given.empty() && !given[i].empty();
    if (tensor.sized) all.insert(all.end(), given[i].begin(), given[i].end());
    run_.describe(tensor);
  }
  if (all.empty()) return;
  run_.give(all, shown(given));
}

bool coalesced::is_inlined(std::int64_t bytes) const {
  return run_.is_inlined(bytes) && count() * static_cast<std::size_t>(run_.world()) <= max_given_numbers;
}

bool coalesced::are_inlined(std::span<const std::int64_t> bytes) const {
  return std::ranges::all_of(bytes, [&](std::int64_t one) { return is_inlined(one); });
}

layout coalesced::place(std::size_t tensor, std::vector<std::int64_t> rows) {
  const auto& of = run_.head().tensors[tensor];
  try {
    return make_layout(of.dims(), of.dim, std::move(rows), itemsize(of.type));
  } catch (const value_error& error) {
    refuse_if(tensor, error.what());
    throw;
  }
}

bundle coalesced::bundle_of(const rows_table& rows, const std::vector<gradient>& modes) {
  std::vector<part> parts;
  parts.reserve(count());
  for (std::size_t i = 0; i < count(); ++i) {
    parts.push_back({.at = place(i, rows[i]), .type = run_.head().tensors[i].type, .op = reduction_of(modes[i])});
  }
  try {
    return bundle(run_.rank(), std::move(parts));
  } catch (const value_error& error) {
    run_.refuse_if(error.what());
    throw;
  }
}

std::vector<std::int64_t> one_each(at::IntArrayRef dims, std::size_t tensors) {
  return dims.size() == 1 ? std::vector<std::int64_t>(tensors, dims[0]) : dims.vec();
}

std::vector<at::Tensor> contiguous_all(at::TensorList x) {
  std::vector<at::Tensor> all;
  all.reserve(x.size());
  for (const auto& one : x) all.push_back(contiguous(one));
  return all;
}

rows_table rows_table_of(const heard& said) {
  rows_table table(said.tensors());
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = said.rows_of(i);
  return table;
}

at::Tensor sizes_tensor(const rows_table& rows) {
  auto sizes =
      at::empty({static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.front().size())}, at::kLong);
  auto* to = sizes.mutable_data_ptr<std::int64_t>();
  for (const auto& one : rows) to = std::copy(one.begin(), one.end(), to);
  return sizes;
}

at::Tensor autograd::rows_of_some(const at::Tensor& sizes, const std::vector<std::size_t>& which) {
  if (static_cast<std::int64_t>(which.size()) == sizes.size(0)) return sizes;
  std::vector<at::Tensor> rows;
  for (const auto tensor : which) rows.push_back(sizes.select(0, static_cast<std::int64_t>(tensor)));
  return at::stack(rows);
}

bool each_tensor::are_all_given() const {
  return std::ranges::all_of(rows, [](const auto& one) { return one.has_value(); });
}

std::string title_of(operation op, std::size_t tensor) {
  return std::string(name(op)) + ": tensor " + std::to_string(tensor);
}

each_tensor each_checked(arguments with, at::TensorList tensors, const per_tensor<std::int64_t>& dim,
                         const per_tensor<std::optional<at::Tensor>>& sizes, std::size_t others, bool later) {
  each_tensor each{.world = with.world};
  const auto count = tensors.size();
  const auto is_given = [&](std::size_t i) { return sizes[i].has_value(); };
  const auto rows_given = sizes.count_for(std::max<std::size_t>(count, 1));
  with.sized = std::ranges::all_of(std::views::iota(std::size_t{0}, rows_given), is_given);
  const auto refuse_if = [&](const refusal& why) {
    if (!why) return;
    if (each.world == 1) throw value_error(std::string(name(with.op)) + ": " + *why);
    refuse_for_all(*why, with, later);
  };
  if (tensors.empty()) refuse_if("no tensors were given");
  refuse_if(check_count("dim", dim.count_for(count), count));
  refuse_if(check_count("sizes", sizes.count_for(count), count));
  refuse_if(check_count(is_reduction(with.op) ? "op" : "grad", others, count));
  std::vector<at::Tensor> table;
  for (std::size_t i = 0; i < count; ++i) {
    refuse_if(of_tensor(i, each.world > 1 ? check_dispatched(tensors[i]) : check_device(tensors[i], tensors[0])));
    each.dims.push_back(dim[i]);
    each.rows.push_back(sizes[i] ? std::optional(rows_as_given(*sizes[i])) : std::nullopt);
    if (sizes[i]) refuse_if(of_tensor(i, check_sizes(*each.rows[i], static_cast<int>(each.world))));
    table.push_back(sizes[i] ? *each.rows[i] : at::full({each.world}, not_given, at::kLong));
  }
  const bool any = std::ranges::any_of(each.rows, [](const auto& one) { return one.has_value(); });
  if (any) each.sizes = at::stack(table);
  return each;
}

}  // namespace sheaf
