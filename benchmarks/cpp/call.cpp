// SPDX-License-Identifier: MIT
#include "call.hpp"

#include <sheaf/error.hpp>

namespace bench {

call::call(sheaf::engine& with, sheaf::operation op, std::int64_t rows, std::int64_t width,
           std::vector<std::int64_t> given)
    : engine_(with) {
  now_.head.op = op;
  now_.head.sized = !given.empty();
  now_.numbers = std::move(given);
  now_.head.tensors.push_back({.type = sheaf::dtype::float32, .ndim = 2, .shape = {rows, width}});
  engine_.begin(now_);
}

call::~call() { engine_.end(now_); }

const sheaf::heard& call::learn(const sheaf::payload& data) {
  const auto& said = engine_.exchange(now_, data);
  if (const auto error = said.verdict()) throw sheaf::value_error(*error);
  return said;
}

sheaf::layout call::place(std::vector<std::int64_t> sizes) const {
  const auto& tensor = now_.head.tensors[0];
  return sheaf::make_layout(tensor.dims(), tensor.dim, std::move(sizes), sheaf::itemsize(tensor.type));
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

std::span<const std::byte> inlined(const sheaf::heard& said, int rank, std::int64_t bytes) {
  const auto brought = said.payload(rank);
  if (static_cast<std::int64_t>(brought.size()) == bytes) return brought;
  throw sheaf::rank_error("a frame brought " + std::to_string(brought.size()) + " bytes of " + std::to_string(bytes));
}

}  // namespace bench
