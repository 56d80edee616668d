// SPDX-License-Identifier: MIT
#include "core/heard.hpp"

#include <algorithm>
#include <utility>

#include "core/engine.hpp"
#include "core/verdict.hpp"

namespace sheaf {

void heard::begin(const call& now) {
  now_ = &now;
  answers_.clear();
  frames_.clear();
}

void heard::set(std::vector<std::optional<frame>> frames) { frames_ = std::move(frames); }

std::size_t heard::tensors() const { return now_->head.tensors.size(); }

std::optional<std::string> heard::verdict() const {
  return is_alike() && are_rows_given() ? std::nullopt : sheaf::verdict(frames());
}

// Sizes that are given are the same everywhere; whether there is one per rank, and each holds what they say, is left to
// look at.
bool heard::are_rows_given() const {
  const auto& own = now_->head;
  const auto& numbers = now_->numbers;
  if (numbers.size() != given_numbers(own, world())) return false;  // for the words of it
  if (numbers.empty() || !is_gather(own.op) || numbers.size() != given_tensors(own) * world()) return true;
  auto next = numbers.begin();
  for (std::size_t tensor = 0; tensor < own.tensors.size(); ++tensor) {
    if (!own.sized && !own.tensors[tensor].sized) continue;
    for (std::size_t rank = 0; rank < world(); ++rank) {
      if (rows(rank, tensor) != *next++) return false;
    }
  }
  return true;
}

std::vector<std::optional<frame>> heard::frames() const {
  if (!is_alike()) return frames_;
  std::vector<std::optional<frame>> all;
  for (std::size_t rank = 0; rank < world(); ++rank) all.emplace_back(frame{head(rank), answers_[rank].payload});
  return all;
}

std::int64_t heard::rows(std::size_t rank, std::size_t tensor) const {
  if (!is_alike()) return frames_[rank]->head.tensors[tensor].rows();
  return tensor == 0 ? answers_[rank].rows : read_rows(answers_[rank].head, now_->head, tensor);
}

std::vector<std::int64_t> heard::rows_of(std::size_t tensor) const {
  std::vector<std::int64_t> all(world());
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = rows(rank, tensor);
  return all;
}

std::span<const std::byte> heard::payload(std::size_t rank) const {
  const auto& all = is_alike() ? answers_[rank].payload : frames_[rank]->payload;
  return all.subspan(now_->numbers.size() * sizeof(std::int64_t));
}

header heard::head(std::size_t rank) const {
  if (!is_alike()) return frames_[rank]->head;
  auto own = now_->head;
  for (std::size_t tensor = 0; tensor < own.tensors.size(); ++tensor) own.tensors[tensor].rows() = rows(rank, tensor);
  return own;
}

template <class Said>
bool heard::any(Said&& said) const {
  if (is_alike()) return said(now_->head);
  return std::ranges::any_of(frames_, [&](const std::optional<frame>& one) { return said(one->head); });
}

bool heard::any_is_apart() const {
  return any([](const header& said) { return said.apart; });
}

std::uint8_t heard::given_up() const { return is_alike() ? now_->head.follows : given_up_by_all(frames_); }

bool heard::any_records() const {
  return any([](const header& said) { return said.records_gradient == recording::on; });
}

bool heard::any_records(std::size_t tensor) const {
  return any([=](const header& said) { return said.tensors[tensor].records_gradient == recording::on; });
}

}  // namespace sheaf
