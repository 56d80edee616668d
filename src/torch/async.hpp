// SPDX-License-Identifier: MIT
// Asynchronous calls: an op that is started here and now, in the order of the program, and runs on the group's own
// thread. Made of the plain op and its backward: see start().
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <sheaf/handle.hpp>
#include <string>
#include <vector>

#include "core/progress.hpp"
#include "torch/collective.hpp"
#include "torch/crossing.hpp"

namespace sheaf::async {

// An op, called through the dispatcher: from its tensors to its results, or from gradients to gradients.
using operation_on = std::function<tensor_list(const tensor_list&)>;

// How a backward of a call is called: a gradient for each of these results in, one for each of these tensors out.
struct backward {
  arguments with;
  operation_on run;
  bool joins = false;                 // this rank takes part though it needs no gradient, and discards
  std::vector<std::size_t> of = {0};  // results and tensors by their numbers, which are the same
};

// All that is to be known of one asynchronous call.
struct request {
  arguments with;
  tensor_list tensors;  // what it is given and may be differentiated
  refusal why;          // what this rank sees wrong by itself
  operation_on run;
  // Asked once the call is done. Tensors that travel share one; any other is local.
  std::function<std::vector<backward>(const tensor_list& results, const outcome& said)> back;
  std::vector<bool> stays = {};  // by tensor, where any does: its gradient does not travel
};

// Starts it. Waits for no other rank, except in the group's first call. Throws value_error for what this rank sees by
// itself: the other ranks hear of it, as in the plain call.
std::shared_ptr<call_under_way> start(const request& what);
// A call that was made by this thread: all that is left is the device's.
std::shared_ptr<call_under_way> finished(tensor_list results);

// One run of an op on the group's thread.
class job {
 public:
  job(progress::place held, c10::Device device) : way_(device), place_(std::move(held)) {}

  // On the group's thread.
  tensor_list run(const tensor_list& given, const std::function<tensor_list()>& body) { return way_.run(given, body); }

  void finish(tensor_list results, const outcome& said);
  // Of a call that did not go by the group's thread, but by this one.
  void finish_here(tensor_list results, const outcome& said);
  void fail(std::exception_ptr why);
  // Waits, in slices, and throws what the op threw.
  void wait();
  // Once: the group's thread may hold the job a moment longer, and must hold nothing that is Python's by then.
  tensor_list take();
  // The current stream of a device waits for them.
  void arrive(const tensor_list& results) const { way_.arrive(results); }
  bool done() const;
  // Its place among the calls in flight is free: nobody will take the results.
  void let_go();
  // Once it is done.
  const outcome& said() const { return said_; }

 private:
  template <class Change>
  void end(Change&& change);

  const pid_t owner_ = getpid();
  crossing way_;              // of the group's thread, until the call is done
  mutable std::mutex mutex_;  // guards all below
  progress::place place_;
  std::condition_variable changed_;
  bool done_ = false;
  tensor_list results_;
  std::exception_ptr error_;
  outcome said_;
};

// One of the calls that may be in flight. Throws value_error where there are too many.
progress::place take_place(engine& moves, operation op);
// Whether the group's thread may make calls of such tensors; else the program's own does, where they are started.
bool runs_apart(const engine& moves, const at::Tensor& x);
// Queues it. Throws what keeps it from being started.
std::shared_ptr<job> launch(const std::shared_ptr<engine>& moves, const arguments& with, const tensor_list& tensors,
                            const operation_on& run, progress::place held);
// Tells the others in its turn, and throws value_error now.
[[noreturn]] void refuse_in_turn(const std::shared_ptr<engine>& moves, arguments with, const std::string& why);

// The backward of one call, in two nodes: one starts the collective when the gradients arrive, the other waits for it
// before what comes before the call is differentiated. A gradient that stays has one node, which waits for nobody.
class ties {
 public:
  // At the start, for what is being recorded there.
  ties(const tensor_list& tensors, const std::vector<bool>& stays);
  // At the end.
  void tie(const tensor_list& results, const backward& how) const;
  bool any() const { return recording_; }

 private:
  struct nodes;
  bool recording_;
  std::shared_ptr<const nodes> at_start_;
};

}  // namespace sheaf::async
