// SPDX-License-Identifier: MIT
// What every rank said of one call. Nearly always they say the same but for their rows: then those are kept and no
// header, and no other is read than the own one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/header.hpp"

namespace sheaf {

struct call;

class heard {
 public:
  // Of a rank whose header has the gist of the own one.
  struct answer {
    std::int64_t rows;  // of the first tensor
    std::span<const std::byte> head;
    std::span<const std::byte> payload;
  };

  // All that was heard before is forgotten. The call must outlive what follows.
  void begin(const call& now);
  // In the order of ranks: those who say what this rank says, as long as all do, ...
  void add(const answer& next) { answers_.push_back(next); }
  // ... or else what each said; nothing: what came from it was no frame of this protocol.
  void set(std::vector<std::optional<frame>> frames);

  std::size_t world() const { return is_alike() ? answers_.size() : frames_.size(); }
  bool is_alike() const { return frames_.empty(); }
  std::size_t tensors() const;
  // The same on every rank; nothing: all go on.
  std::optional<std::string> verdict() const;
  // What each said in full, with the sizes given before its data.
  std::vector<std::optional<frame>> frames() const;

  // Where the verdict is to go on.
  std::int64_t rows(std::size_t rank, std::size_t tensor = 0) const;
  std::vector<std::int64_t> rows_of(std::size_t tensor = 0) const;
  std::span<const std::byte> payload(std::size_t rank) const;  // without sizes
  header head(std::size_t rank) const;
  bool any_is_apart() const;
  // Where the verdict is an error: how many calls that follow are given up, the same on every rank.
  std::uint8_t given_up() const;
  bool any_records() const;
  bool any_records(std::size_t tensor) const;

 private:
  bool are_rows_given() const;
  template <class Said>
  bool any(Said&& said) const;

  const call* now_ = nullptr;
  std::vector<answer> answers_;  // kept from call to call
  std::vector<std::optional<frame>> frames_;
};

}  // namespace sheaf
