// SPDX-License-Identifier: MIT
// The backward of asynchronous calls: started when the gradient arrives, waited for when its result is used.
#include <ATen/EmptyTensor.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>
#include <type_traits>

#include "torch/async.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"
#include "torch/nodes.hpp"

namespace sheaf::async {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using node_pointer = decltype(Edge::function);  // torch 2.11 to 2.13 have two kinds

template <class Node, class... Arguments>
node_pointer make_node(Arguments&&... with) {
  if constexpr (std::is_same_v<node_pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(with)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(with)...);
  }
}

// A gradient that is not there yet, on its way from one node to the next: the job is what its storage holds, so that it
// is dropped with the gradient, should the backward end early.
struct promise {
  std::shared_ptr<job> running;
  std::size_t number;       // of the job's results
  variable_list gradients;  // what it works on: as long as they are held here, nobody takes them for his own and writes
  at::Tensor zero = {};     // what it reads as
};

void drop_promise(void* held) { delete static_cast<promise*>(held); }

at::Tensor promised(promise what, const torch::autograd::InputMetadata& as) {
  what.zero = at::zeros({16}, as.options().dtype(at::kByte));
  auto* const zero = what.zero.mutable_data_ptr();
  const auto bytes = what.zero.nbytes();
  c10::DataPtr data(zero, new promise(std::move(what)), drop_promise, as.device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                       nullptr, false);
  const auto shape = as.shape_as_dim_vector();
  auto result = at::empty({0}, as.options());
  const std::vector<std::int64_t> strides(shape.size(), 0);
  result.set_(c10::Storage(std::move(storage)), 0, c10::asIntArrayRefSlow(shape, __FILE__, __LINE__), strides);
  return result;
}

const promise* promise_in(const at::Tensor& gradient) {
  if (!gradient.defined() || !gradient.has_storage()) return nullptr;
  const auto& data = gradient.storage().data_ptr();
  return data.get_deleter() == drop_promise ? static_cast<const promise*>(data.get_context()) : nullptr;
}

// Between what was given to a call and the call. Runs as late as can be: after all that is ready, but before whatever
// is older than the newest call behind it. That one would come after those otherwise, here and not on other ranks.
struct AwaitBackward : torch::autograd::Node {
  explicit AwaitBackward(edge_list&& next) : Node(place_of(next), std::move(next)) {}

  // Where no call lies behind it, before all nodes of late, as fewer calls were started than nodes were made; of
  // several such the newest call's comes first, on every rank.
  static std::uint64_t place_of(const edge_list& next) {
    thread_local std::uint64_t starts = 0;
    ++starts;
    const auto newest = autograd::newest_call_behind(next);
    return newest > 0 ? newest : starts;
  }

  variable_list apply(variable_list&& gradients) override {
    tensor_list arrived;  // all promises here are of one job
    for (auto& one : gradients) {
      const auto* late = promise_in(one);
      if (!late) continue;
      if (arrived.empty()) {
        translated([&] { late->running->wait(); });
        arrived = late->running->take();
        late->running->arrive(arrived);
      }
      one = arrived[late->number];
    }
    return std::move(gradients);
  }
};

// The call: its number in the order of nodes is that of its start, which is the same on every rank, however they wait.
struct StartBackward : torch::autograd::Node {
  StartBackward(std::uint64_t order, edge_list&& next, backward how, std::shared_ptr<const SavedVariable> saved)
      : Node(order, std::move(next)), how_(std::move(how)), saved_(std::move(saved)) {}

  variable_list apply(variable_list&& gradients) override {
    for (std::size_t input = 0; input < gradients.size(); ++input) {
      if (!gradients[input].defined()) gradients[input] = input_metadata(input).zeros_like();
    }
    const auto run = still_there();
    const auto moves = translated([&] { return find_engine(how_.with.group); });
    const bool apart = runs_apart(*moves, gradients[0]);
    const auto running = apart ? try_launch(moves, gradients, run) : nullptr;
    if (!running) {
      const apart_here as_others_do(apart);
      auto result = run(gradients);
      result.resize(num_outputs());
      return result;
    }
    variable_list result;
    for (std::size_t output = 0; output < num_outputs(); ++output) {
      const auto& edge = next_edge(output);
      result.push_back(promised({running, output, gradients}, edge.function->input_metadata(edge.input_nr)));
    }
    return result;
  }

  void release_variables() override {
    decltype(saved_) gone;  // what they hold goes after the lock
    operation_on over;
    const std::lock_guard lock(guard_);
    std::swap(gone, saved_);
    std::swap(over, how_.run);
  }

 private:
  // Not after a backward that kept no graph. A checkpoint makes the call again for its sizes, as it does for those of a
  // plain one: ranks that start and ranks that call make the same calls.
  operation_on still_there() {
    std::unique_lock lock(guard_);
    TORCH_CHECK(how_.run, torch::autograd::ERR_BACKWARD_TWICE);
    const auto run = how_.run;
    const auto saved = saved_;
    lock.unlock();
    saved->unpack();
    return run;
  }

  // Nothing where the plain op must do: its graph is recorded, it is local, too many are in flight, hooks of this node
  // look at what it returns, or nobody would wait before the gradients may be written again.
  std::shared_ptr<job> try_launch(const std::shared_ptr<engine>& moves, const variable_list& gradients,
                                  const operation_on& run) const {
    if (c10::GradMode::is_enabled() || how_.with.local || num_outputs() == 0 || is_watched()) return nullptr;
    return translated([&]() -> std::shared_ptr<job> {
      auto place = moves->line()->take_place();
      return place ? launch(moves, how_.with, gradients, run, std::move(place)) : nullptr;
    });
  }

  bool is_watched() const {
    const auto has_hooks = [](const Edge& next) {
      return next.is_valid() && (!next.function->pre_hooks().empty() || !next.function->tensor_pre_hooks().empty());
    };
    return !post_hooks().empty() || std::ranges::any_of(next_edges(), has_hooks);
  }

  std::mutex guard_;  // of what release_variables() drops
  backward how_;
  std::shared_ptr<const SavedVariable> saved_;
};
[[maybe_unused]] const bool offered = autograd::offer_node(typeid(StartBackward));

}  // namespace

struct ties::nodes {
  std::uint64_t order;
  edge_list edges;  // by tensor, where its gradient goes from the call; invalid: nowhere
  std::vector<std::shared_ptr<const SavedVariable>> saved;  // by tensor; those that travel share a node, and one
};

namespace {

// Nothing but a sign: whoever looks after saved tensors, as checkpoints do, sees one of this call as it would of the
// plain one, and makes the call again for it.
std::shared_ptr<const SavedVariable> save_a_sign() {
  static const auto* sign = [] {
    const c10::InferenceMode as_usual(false);  // whatever the first call is made in
    return new at::Tensor(at::detail::empty_cpu({0}, at::kLong));
  }();
  return std::make_shared<const SavedVariable>(*sign, false);
}

}  // namespace

ties::ties(const tensor_list& tensors, const std::vector<bool>& stays) : recording_(c10::GradMode::is_enabled()) {
  if (!recording_) return;
  auto edges = torch::autograd::collect_next_edges(tensors);
  edge_list travel(tensors.size());  // a node that waits must not lead to what does not
  decltype(nodes::saved) saved(tensors.size());
  std::shared_ptr<const SavedVariable> shared;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!stays.empty() && stays[i]) {
      if (edges[i].is_valid()) saved[i] = save_a_sign();
      continue;
    }
    travel[i] = edges[i];
    if (!shared) shared = save_a_sign();
    saved[i] = shared;
  }
  if (std::ranges::any_of(travel, &Edge::is_valid)) {
    const auto await = make_node<AwaitBackward>(std::move(travel));
    for (const auto& one : tensors) await->add_input_metadata(one);
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      if (stays.empty() || !stays[i]) edges[i] = Edge(await, i);
    }
  }
  const auto order = at::sequence_number::get_and_increment();
  at_start_ = std::make_shared<nodes>(nodes{order, std::move(edges), std::move(saved)});
}

void ties::tie(const tensor_list& results, const backward& how) const {
  edge_list edges;
  for (const auto number : how.of) edges.push_back(at_start_->edges[number]);
  if (std::ranges::none_of(edges, &Edge::is_valid)) {
    if (!how.joins) return;
    edges.clear();
  }
  // Of one tensor at least; one that stays joins nothing, so what leads nowhere has no sign and no node.
  const auto start = make_node<StartBackward>(at_start_->order, std::move(edges), how, at_start_->saved[how.of[0]]);
  for (const auto number : how.of) torch::autograd::set_history(results[number], start);
}

}  // namespace sheaf::async
