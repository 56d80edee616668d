// SPDX-License-Identifier: MIT
#include "core/work.hpp"

#include <array>
#include <vector>

#include "core/copy.hpp"

namespace sheaf {
namespace {

class host_work final : public local_work {
 public:
  void place(const layout& at, std::span<std::byte* const> blocks, std::byte* whole) const override {
    for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
      sheaf::place(at, static_cast<int>(rank), blocks[rank], whole);
    }
  }
  void pack(const layout& at, const std::byte* whole, std::span<std::byte* const> blocks) const override {
    for (int rank = 0; rank < static_cast<int>(blocks.size()); ++rank) {
      sheaf::pack(at, rank, whole, 0, at.block_bytes(rank), blocks[rank]);
    }
  }
  void sum(dtype type, reduction op, int ranks, const std::byte* sources, std::int64_t stride, std::byte* out,
           std::size_t bytes) const override {
    std::vector<const std::byte*> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(sources + rank * stride);
    sum_ranks(type, op, parts, out, bytes);
  }
};

// By device. Not a plain variable: devices are offered while the library's variables are still being made.
std::array<const local_work*, 2>& all_work() {
  static const host_work host;
  static std::array<const local_work*, 2> all{&host, nullptr};
  return all;
}

}  // namespace

const local_work* find_work(device_type where) {
  const auto index = static_cast<std::size_t>(where);
  return index < all_work().size() ? all_work()[index] : nullptr;
}

void offer_work(device_type where, const local_work& work) { all_work().at(static_cast<std::size_t>(where)) = &work; }

}  // namespace sheaf
