// SPDX-License-Identifier: MIT
#include "p2p/tags.hpp"

#include "core/bundle.hpp"

namespace sheaf::p2p {
namespace {

// The finaliser of splitmix64: every bit of the input moves every bit of the output.
std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  auto x = seed + 0x9e3779b97f4a7c15 + value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint64_t mix_all(std::uint64_t seed, const std::vector<std::int64_t>& sizes) {
  for (const auto rows : sizes) seed = mix(seed, rows);
  return seed;
}

std::uint64_t hash_of(const call& now) {
  const auto& head = now.head;
  std::uint64_t hash = mix(0, head.sequence);  // before it is added to anything: #8 of one op is not #9 of another
  for (const std::uint64_t value : {std::uint64_t(head.op), std::uint64_t(head.mode), head.origin,
                                    std::uint64_t(head.sized), std::uint64_t(head.tensors.size())}) {
    hash = mix(hash, value);
  }
  for (const auto& tensor : head.tensors) {
    hash = mix(hash, std::uint64_t(tensor.type) | std::uint64_t(tensor.ndim) << 8 | std::uint64_t(tensor.dim) << 16 |
                         std::uint64_t(tensor.mode) << 24);
    for (int axis = 0; axis < tensor.ndim; ++axis) {
      if (axis != tensor.dim) hash = mix(hash, tensor.shape[axis]);
    }
  }
  return hash;
}

}  // namespace

data_tags::data_tags(const call& now, const layout& at) : call_(mix_all(hash_of(now), at.sizes)) {}

data_tags::data_tags(const call& now, const bundle& all) : call_(hash_of(now)) {
  for (const auto& one : all.parts()) call_ = mix_all(call_, one.at.sizes);
}

std::uint32_t data_tags::operator()(std::uint64_t piece) const {
  // Neighbours never share a tag: an even piece and the odd one after it are two kinds of message.
  const auto tag = (static_cast<std::uint32_t>(mix(call_, piece) >> 34) & ~1u) | (piece & 1u);
  return tag == frame_tag ? 2 : tag;
}

}  // namespace sheaf::p2p
