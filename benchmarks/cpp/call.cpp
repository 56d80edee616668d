// SPDX-License-Identifier: MIT
#include "call.hpp"

#include <sheaf/error.hpp>

#include "core/verdict.hpp"

namespace bench {

call::call(sheaf::engine& with, sheaf::operation op, std::int64_t rows, std::int64_t width,
           std::vector<std::int64_t> given)
    : engine_(with), given_(std::move(given)) {
  now_.head.op = op;
  now_.head.sized = !given_.empty();
  now_.numbers = given_;
  now_.head.tensors.push_back({.type = sheaf::dtype::float32, .ndim = 2, .shape = {rows, width}});
  engine_.begin(now_);
}

call::~call() { engine_.end(now_); }

std::vector<sheaf::frame> call::learn(std::span<const std::byte> data) {
  const auto sizes = std::as_bytes(std::span(given_));
  auto said = engine_.exchange(now_, {sizes.size() + data.size(), [&](std::byte* to) {
                                        if (!sizes.empty()) std::memcpy(to, sizes.data(), sizes.size());
                                        if (!data.empty()) std::memcpy(to + sizes.size(), data.data(), data.size());
                                      }});
  if (const auto error = sheaf::verdict(said)) throw sheaf::value_error(*error);
  std::vector<sheaf::frame> frames;
  frames.reserve(said.size());
  for (auto& one : said) {
    one->payload = one->payload.subspan(sizes.size());
    frames.push_back(std::move(*one));
  }
  return frames;
}

sheaf::layout call::place(std::span<const std::int64_t> sizes) const {
  const auto& tensor = now_.head.tensors[0];
  return sheaf::make_layout(tensor.dims(), tensor.dim, sizes, sheaf::itemsize(tensor.type));
}

bool call::is_inlined(std::int64_t bytes) const { return static_cast<std::size_t>(bytes) <= engine_.inline_bytes(); }

sheaf::memory call::take_result(const sheaf::layout& at, std::size_t bytes) {
  auto own = engine_.take_result(now_, at);
  return own.data ? own : sheaf::allocate(bytes);
}

sheaf::memory call::take_private(std::size_t bytes) {
  auto own = engine_.take_private(bytes);
  return own.data ? own : sheaf::allocate(bytes);
}

void call::all_gather(const sheaf::layout& at, const sheaf::memory& own, const sheaf::memory& result) {
  engine_.all_gather(now_, at, own, result);
}

void call::reduce_scatter(const sheaf::layout& at, const sheaf::memory& whole, const sheaf::memory& own) {
  engine_.reduce_scatter(now_, at, sheaf::reduction::sum, whole, own);
}

std::vector<std::int64_t> rows_of(const std::vector<sheaf::frame>& frames) {
  std::vector<std::int64_t> rows;
  rows.reserve(frames.size());
  for (const auto& said : frames) rows.push_back(said.head.tensors[0].shape[0]);
  return rows;
}

std::span<const std::byte> inlined(const sheaf::frame& said, std::int64_t bytes) {
  if (static_cast<std::int64_t>(said.payload.size()) != bytes) {
    throw sheaf::rank_error("a frame brought " + std::to_string(said.payload.size()) + " bytes of " +
                            std::to_string(bytes));
  }
  return said.payload;
}

}  // namespace bench
