// SPDX-License-Identifier: MIT
#include "torch/nodes.hpp"

#include <algorithm>
#include <queue>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace sheaf::autograd {
namespace {

using torch::autograd::Node;

std::vector<std::type_index>& communicating() {
  static std::vector<std::type_index> types;
  return types;
}

// Compiled regions, checkpoints and whatever Python differentiates by itself may hold calls that nobody sees from here.
// By its name, so that the library needs no Python.
bool is_of_python(const Node& node) { return std::string_view(typeid(node).name()) == "N5torch8autograd6PyNodeE"; }

bool communicates(const Node& node) {
  return std::ranges::find(communicating(), std::type_index(typeid(node))) != communicating().end() ||
         is_of_python(node);
}

}  // namespace

bool offer_node(std::type_index type) {
  communicating().push_back(type);
  return true;
}

// From the newest node to older ones, so that the first that is found is the newest.
std::uint64_t newest_call_behind(const torch::autograd::edge_list& edges) {
  const auto older = [](const Node* a, const Node* b) { return a->sequence_nr() < b->sequence_nr(); };
  std::priority_queue<const Node*, std::vector<const Node*>, decltype(older)> left(older);
  std::unordered_set<const Node*> seen;
  const auto follow = [&](const torch::autograd::edge_list& next) {
    for (const auto& edge : next) {
      const auto* node = edge.function.get();
      if (node && seen.insert(node).second) left.push(node);
    }
  };
  for (follow(edges); !left.empty();) {
    const auto* node = left.top();
    left.pop();
    if (communicates(*node)) return node->sequence_nr();
    follow(node->next_edges());
  }
  return 0;
}

}  // namespace sheaf::autograd
