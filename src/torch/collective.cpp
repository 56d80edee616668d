// SPDX-License-Identifier: MIT
#include "torch/collective.hpp"

#include <ATen/ops/empty.h>

#include <cmath>
#include <sheaf/error.hpp>

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
  if (!with.sized || with.mode != name(gradient::own)) head.sequence = moves_->next_sequence();
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
  now_.head.refusal = *why;
  if (is_local()) throw value_error(std::string(name(now_.head.op)) + ": " + *why);
  auto frames = moves_->refuse(now_);
  if (frames.empty()) {
    // Nobody else was heard: the text is what the others will come to if this rank alone refuses.
    throw value_error(title(now_.head) + ": rank " + std::to_string(rank()) + " refuses: " + *why);
  }
  throw value_error(*verdict(frames));
}

void collective::describe(const at::Tensor& x, std::int64_t dim, recording records) {
  now_.head.tensors.push_back(record_of(x, dim));
  now_.head.records_gradient = records;
}

std::vector<frame> collective::learn(std::span<const std::byte> payload) {
  const auto said = moves_->exchange(now_, payload);
  if (const auto error = verdict(said)) throw value_error(*error);
  std::vector<frame> frames;
  for (const auto& one : said) frames.push_back(*one);
  last_outcome().any_rank_records = any_records(frames);
  return frames;
}

void collective::learn_if_checked(const std::vector<std::int64_t>& sizes) {
  now_.given = list(sizes);
  if (moves_->checks_sized_calls()) learn(std::as_bytes(std::span(sizes)));
}

void collective::all_gather(const layout& at, const at::Tensor& own, const at::Tensor& result) {
  moves_->all_gather(now_, at, memory_of(own), memory_of(result));
}

void collective::reduce_scatter(const layout& at, const at::Tensor& whole, const at::Tensor& own) {
  const auto op = mode() == gradient::mean ? reduction::mean : reduction::sum;
  moves_->reduce_scatter(now_, at, op, memory_of(whole), memory_of(own));
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

layout layout_of(const record& tensor, const std::vector<std::int64_t>& sizes) {
  return make_layout(tensor.dims(), tensor.dim, sizes, itemsize(tensor.type));
}

at::Tensor empty_with_rows(const at::Tensor& x, std::int64_t dim, std::int64_t rows) {
  auto shape = x.sizes().vec();
  shape[dim < 0 ? dim + x.dim() : dim] = rows;
  return at::empty(shape, x.options().memory_format(at::MemoryFormat::Contiguous));
}

outcome& last_outcome() {
  thread_local outcome last;
  return last;
}

std::optional<double> seconds_of(std::optional<std::chrono::milliseconds> time) {
  return time ? std::optional(std::chrono::duration<double>(*time).count()) : std::nullopt;
}

}  // namespace sheaf
