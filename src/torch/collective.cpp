// SPDX-License-Identifier: MIT
#include "torch/collective.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <sheaf/error.hpp>

#include "core/pages.hpp"
#include "core/text.hpp"
#include "core/verdict.hpp"
#include "torch/group.hpp"

namespace sheaf {
namespace {

std::optional<std::chrono::milliseconds> timeout_from(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  if (!std::isfinite(*seconds) || *seconds <= 0 || *seconds > 1e9) {
    throw value_error("timeout must be a positive number of seconds, got " + std::to_string(*seconds));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000)));
}

bool any_records(const std::vector<frame>& frames) {
  for (const auto& said : frames) {
    if (said.head.records_gradient == recording::on) return true;
  }
  return false;
}

}  // namespace

collective::collective(const arguments& with) : moves_(find_engine(with.group)) {
  auto& head = now_.head;
  head.op = with.op;
  head.sized = with.sized;
  head.origin = static_cast<std::uint64_t>(with.origin);
  if (!with.local) head.sequence = moves_->next_sequence();
  last_outcome() = {static_cast<std::int64_t>(head.sequence), false};
  try {
    head.mode = gradient_from(with.mode);
    now_.timeout = timeout_from(with.timeout);
  } catch (const value_error& error) {
    refuse_if(error.what());
  }
  if (with.world != moves_->world()) {
    refuse_if("world is " + std::to_string(with.world) + ", but the group has " + std::to_string(moves_->world()) +
              " ranks");
  }
}

void collective::refuse_if(const refusal& why) {
  if (!why) return;
  now_.head.refusal = cut_refusal(*why);  // as the others will read it
  if (is_local()) throw value_error(std::string(name(now_.head.op)) + ": " + *why);
  auto frames = moves_->refuse(now_);
  if (frames.empty()) {
    // Nobody else was heard: the text is what the others will come to if this rank alone refuses.
    throw value_error(title(now_.head) + ": rank " + std::to_string(rank()) + " refuses: " + now_.head.refusal);
  }
  throw value_error(*verdict(frames));
}

void collective::describe(const at::Tensor& x, std::int64_t dim, recording records) {
  now_.head.tensors.push_back(record_of(x, dim));
  now_.head.records_gradient = records;
}

layout collective::place(const std::vector<std::int64_t>& sizes) {
  try {
    return make_layout(tensor().dims(), tensor().dim, sizes, itemsize(tensor().type));
  } catch (const value_error& error) {
    refuse_if(error.what());
    throw;
  }
}

at::Tensor collective::allocate(const at::Tensor& like, std::int64_t dim, std::int64_t rows) {
  try {
    return empty_with_rows(like, dim, rows);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    moves_->report(now_, "failed in " + sheaf::describe(now_.head) + ": " + why.substr(0, why.find('\n')));
    throw;
  }
}

void collective::give(const std::vector<std::int64_t>& sizes) {
  given_ = sizes;
  now_.given = list(sizes);
}

std::vector<frame> collective::learn(std::span<const std::byte> data) {
  const auto sizes = std::as_bytes(std::span(given_));
  std::vector<std::byte> payload(sizes.begin(), sizes.end());
  payload.insert(payload.end(), data.begin(), data.end());
  auto said = moves_->exchange(now_, payload);
  if (const auto error = verdict(said)) throw value_error(*error);
  std::vector<frame> frames;
  for (auto& one : said) {
    one->payload.erase(one->payload.begin(), one->payload.begin() + static_cast<std::ptrdiff_t>(sizes.size()));
    frames.push_back(std::move(*one));
  }
  last_outcome().any_rank_records = any_records(frames);
  return frames;
}

void collective::learn_if_checked() {
  if (moves_->checks_sized_calls()) learn({});
}

void collective::all_gather(const layout& at, const at::Tensor& own, const at::Tensor& result) {
  moves_->all_gather(now_, at, memory_of(own), memory_of(result));
}

void collective::reduce_scatter(const layout& at, const at::Tensor& whole, const at::Tensor& own) {
  moves_->reduce_scatter(now_, at, reduction_of(mode()), memory_of(whole), memory_of(own));
}

void refuse_for_all(operation op, const std::string& why, const std::string& group, bool sized) {
  collective run({.op = op, .mode = "sum", .group = group, .world = find_engine(group)->world(), .sized = sized});
  run.refuse_if(why);
}

refusal check_dispatched(const at::Tensor& x) {
  if (!x.defined() || x.is_nested()) return check_tensor(x, 0);
  return x.is_meta() ? check_carried(x) : std::nullopt;
}

at::Tensor alone_result(const at::Tensor& x) {
  const auto result = x.contiguous();
  return c10::GradMode::is_enabled() ? result : result.detach();
}

void check_inlined(std::size_t rank, std::size_t got, std::int64_t expected) {
  if (static_cast<std::int64_t>(got) == expected) return;
  throw rank_error("rank " + std::to_string(rank) + " sent " + std::to_string(got) + " bytes of " +
                   std::to_string(expected));
}

std::vector<std::int64_t> rows_of(const std::vector<frame>& frames) {
  std::vector<std::int64_t> rows;
  for (const auto& said : frames) rows.push_back(said.head.tensors[0].shape[said.head.tensors[0].dim]);
  return rows;
}

at::Tensor contiguous(const at::Tensor& x) { return x.resolve_conj().resolve_neg().contiguous(); }

memory memory_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(const_cast<void*>(contiguous.const_data_ptr())), contiguous.nbytes(),
          std::make_shared<at::Tensor>(contiguous)};
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

reduction reduction_of(gradient mode) { return mode == gradient::mean ? reduction::mean : reduction::sum; }

at::Tensor empty_with_rows(const at::Tensor& x, std::int64_t dim, std::int64_t rows) {
  auto shape = x.sizes().vec();
  shape[dim < 0 ? dim + x.dim() : dim] = rows;
  auto result = at::empty(shape, x.options().memory_format(at::MemoryFormat::Contiguous));
  prefer_huge_pages(static_cast<std::byte*>(result.mutable_data_ptr()), result.nbytes());
  return result;
}

outcome& last_outcome() {
  thread_local outcome last;
  return last;
}

std::optional<double> seconds_of(std::optional<std::chrono::milliseconds> time) {
  return time ? std::optional(std::chrono::duration<double>(*time).count()) : std::nullopt;
}

}  // namespace sheaf
