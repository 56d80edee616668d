// SPDX-License-Identifier: MIT
// The nodes of a graph whose backward is a call of Sheaf's. torch runs the newest node that is ready, so plain calls
// are differentiated in the opposite order of the calls, on every rank, whatever else their graphs hold.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <typeindex>

namespace sheaf::autograd {

// To be called while the library is loaded: nodes of this type communicate.
bool offer_node(std::type_index type);

// The number, in torch's order, of the newest node that these edges lead to and that communicates, or may; 0: they lead
// to none. Goes through the graph to there, about 100 ns a node.
std::uint64_t newest_call_behind(const torch::autograd::edge_list& edges);

}  // namespace sheaf::autograd
