// SPDX-License-Identifier: MIT
// The least that a gather through shared memory does: every rank copies its block into memory that all of them see,
// and they meet once. No header, no sizes, no memory to choose or to give back.
#pragma once

#include "collectives.hpp"
#include "shm/mapping.hpp"

namespace bench {

class shared_copy final : public candidate {
 public:
  // Every rank makes one, at the same time.
  shared_copy(const setting& of, const sheaf::memory& block);
  void call(int) override;
  std::span<const std::byte> result(int) const override { return {whole_.data(), bytes_}; }

 private:
  ranks& all_;
  const std::size_t bytes_;
  sheaf::shm::mapping whole_;
  std::byte* const own_;
  const sheaf::memory block_;
};

}  // namespace bench
