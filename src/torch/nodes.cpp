// SPDX-License-Identifier: MIT
#include "torch/nodes.hpp"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace sheaf::autograd {
namespace {

std::vector<std::type_index>& communicating() {
  static std::vector<std::type_index> types;
  return types;
}

bool communicates(const torch::autograd::Node& node) {
  return std::ranges::find(communicating(), std::type_index(typeid(node))) != communicating().end();
}

}  // namespace

bool offer_node(std::type_index type) {
  communicating().push_back(type);
  return true;
}

std::uint64_t newest_call_behind(const torch::autograd::edge_list& edges) {
  std::uint64_t newest = 0;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> left;
  const auto follow = [&](const torch::autograd::edge_list& next) {
    for (const auto& edge : next) {
      const auto* node = edge.function.get();
      if (node && seen.insert(node).second) left.push_back(node);
    }
  };
  follow(edges);
  while (!left.empty()) {
    const auto* node = left.back();
    left.pop_back();
    if (node->sequence_nr() < newest) continue;  // all behind it is older
    if (communicates(*node)) {
      newest = node->sequence_nr();
    } else {
      follow(node->next_edges());
    }
  }
  return newest;
}

}  // namespace sheaf::autograd
