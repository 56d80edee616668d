// SPDX-License-Identifier: MIT
// One call of one op, from its arguments to the verdict: what all ops share.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine.hpp"
#include "torch/arguments.hpp"
#include "torch/tensors.hpp"

namespace sheaf {

// A call that has its number already, from the thread that started it: the next collective of this thread is that call.
// If there is none, the call ends with this object.
class numbered_call {
 public:
  numbered_call(std::shared_ptr<engine> moves, call now);
  ~numbered_call();
  numbered_call(const numbered_call&) = delete;
  numbered_call& operator=(const numbered_call&) = delete;

 private:
  friend class collective;
  static numbered_call*& next();

  std::shared_ptr<engine> moves_;
  call now_;
};

// The next collective of this thread, made here and now, goes the way of calls that were started: other ranks may have
// left it to the group's thread.
class apart_here {
 public:
  explicit apart_here(bool is_apart) { next() = is_apart; }
  ~apart_here() { next() = false; }
  apart_here(const apart_here&) = delete;
  apart_here& operator=(const apart_here&) = delete;

 private:
  friend class collective;
  static bool& next();
};

class collective {
 public:
  explicit collective(const arguments& with);
  collective(const collective&) = delete;
  collective& operator=(const collective&) = delete;

  // Check. Throws value_error, and tells the other ranks where they listen.
  void refuse_if(const refusal& why);
  // How tensors like this one are carried. The call's are, from here on.
  carriage look_at(const at::Tensor& x);
  // Check the tensor, and that the group's engine takes tensors on its device, and how it does.
  void take(const at::Tensor& x, std::int64_t dim);
  // Place: throws value_error, told to the others, when the sizes are too large.
  layout place(std::vector<std::int64_t> sizes);
  // The result, uninitialised: of the engine's own memory where it has better than fresh. What goes wrong here is told
  // to the ranks that will wait in vain.
  at::Tensor allocate(const at::Tensor& like, std::int64_t dim, std::int64_t rows, const layout& at, bool inlined);
  // Whether so much data rides along with its header.
  bool is_inlined(std::int64_t bytes) const;
  // Takes the tensor's record into the header; the tensor has passed check_tensor.
  void describe(const at::Tensor& x, std::int64_t dim, recording records);
  // The same of one of several, of which so many are expected.
  void expect(std::size_t tensors) { now_.head.tensors.reserve(tensors); }
  void describe(record tensor);
  // For calls with sizes given, of all tensors: they are compared where headers are. `shown` is how errors show those
  // of several.
  void give(const std::vector<std::int64_t>& sizes, std::string shown = {});
  // Learn, and the verdict: throws value_error with the same text on every rank. A rank's payload is its `data`.
  const heard& learn(const payload& data);
  // Headers alone, where calls with sizes given exchange them at all.
  void learn_if_checked();
  // Check that what this rank sends will be taken for what it is.
  void refuse_if_out_of_step();
  bool is_on_device() const { return carried_ == carriage::device; }

  int rank() const { return moves_->rank(); }
  int world() const { return moves_->world(); }
  gradient mode() const { return now_.head.mode; }
  const record& tensor() const { return now_.head.tensors[0]; }
  void all_gather(const layout& at, const at::Tensor& own, const at::Tensor& result);
  void reduce_scatter(const layout& at, const at::Tensor& whole, const at::Tensor& own);
  const header& head() const { return now_.head; }
  // The engine's memory for results of such a layout, or none.
  memory take_result(const layout& at);
  void all_gather(const bundle& all);
  // The own blocks lie in `own` or, of tensors that a device carries, in the bundle's.
  void reduce_scatter(const bundle& all, memory own);

 private:
  bool is_local() const { return now_.head.sequence == 0; }
  // Of the calls that follow, where all ranks raise.
  void give_up_as_others(std::uint8_t calls);
  void give_up_at_most(std::uint64_t calls);
  // What ends the call in here says how many of those are given up with it.
  template <class Body>
  auto in_step(Body&& body) -> decltype(body());
  // What goes wrong in here is told to the ranks that will wait in vain.
  template <class Body>
  auto reporting(Body&& body) -> decltype(body());
  // From begin to end, whatever happens. What fails on this rank alone, while others may be moving a device's data,
  // puts it out of step. Where others may go on to what follows, that counts here, too.
  struct turn {
    turn(collective& owner, bool local, bool numbered);
    ~turn();
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;

    const collective& of;
    engine& moves;
    call& now;
    const int exceptions;
  };
  collective(const arguments& with, numbered_call* given);

  std::shared_ptr<engine> moves_;
  carriage carried_ = carriage::none;  // until the tensors are known
  bool is_expected_ = false;           // others heard that it comes
  call now_;
  // So many calls that follow are given up if this one fails; nothing: it was started, and later calls have numbers.
  std::optional<std::uint8_t> gives_up_;
  turn turn_;
};

// Above this the sizes given leave no room in a frame for data.
inline constexpr std::size_t max_inline_ranks = 512;
// Throws rank_error when a rank's frame brought another number of bytes than its header says.
void check_inlined(std::size_t rank, std::size_t got, std::int64_t expected);
reduction reduction_of(gradient mode);
recording recording_of(const at::Tensor& x);
// What a kernel tells the autograd layer above it, on the same thread: the schema has no place for it.
struct outcome {
  std::int64_t sequence = 0;                   // the call's number
  bool any_rank_records = false;               // whether some rank's result will be differentiated
  std::vector<bool> any_rank_records_of = {};  // the same by tensor
};
outcome& last_outcome();
// Of the last call that this thread made, on any group.
std::int64_t& last_number();

}  // namespace sheaf
