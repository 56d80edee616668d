// SPDX-License-Identifier: MIT
#include "torch/async.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <sheaf/error.hpp>

#include "core/chore.hpp"
#include "core/interrupt.hpp"
#include "torch/device.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"

namespace sheaf::async {
namespace {

// Memory of a device's that torch's allocator did not make: it would not keep it for another stream.
bool is_foreign(const at::Tensor& x) {
  if (x.is_cpu() || !x.has_storage()) return false;
  const auto* usual = c10::GetAllocator(x.device().type());
  return !usual || x.storage().data_ptr().get_deleter() != usual->raw_deleter();
}

// The same data with nothing of Python's: what the group's thread drops must not need Python's lock, and what it runs
// must see whether gradients are recorded.
tensor_list without_graph(const tensor_list& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below;
  tensor_list result;
  for (const auto& one : tensors) {
    result.push_back(is_foreign(one) ? one.clone() : one.detach());
    if (one.requires_grad()) result.back().unsafeGetTensorImpl()->set_requires_grad(true);
  }
  return result;
}

// As the thread that started the call had it.
struct mode {
  bool records = c10::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
};

void throw_if_pointless(engine& moves) {
  if (is_ending()) throw interrupted("the process ends");
  const chore now;
  if (now && moves.is_gone()) throw rank_error("the process group was destroyed while this call was in flight");
}

tensor_list run_below(const operation_on& run, const tensor_list& tensors, const mode& as) {
  const c10::InferenceMode inference(as.inference);
  const c10::AutoGradMode records(as.records);
  const at::AutoDispatchBelowADInplaceOrView below;
  return run(tensors);
}

class started_call final : public call_under_way {
 public:
  started_call(std::shared_ptr<job> running, const request& what)
      : running_(std::move(running)), back_(what.back), ties_(std::in_place, what.tensors, what.stays) {}
  explicit started_call(std::shared_ptr<job> over) : running_(std::move(over)) {}
  // What is dropped goes on, and is counted no more: how far it has come differs by rank.
  ~started_call() override { running_->let_go(); }

  tensor_list wait() override {
    wait_for(*running_);
    const std::lock_guard lock(mutex_);
    if (!std::exchange(taken_, true)) {
      results_ = running_->take();
      if (ties_ && ties_->any()) {
        for (const auto& how : back_(results_, running_->said())) ties_->tie(results_, how);
      }
    }
    running_->arrive(results_);
    return results_;
  }

  bool done() const override { return running_->done(); }

 private:
  static void wait_for(job& running) {
    try {
      translated([&] { running.wait(); });
    } catch (...) {
      if (running.done()) running.let_go();  // it may also be this wait that ended early
      throw;
    }
  }

  const std::shared_ptr<job> running_;
  std::mutex mutex_;  // guards all below
  bool taken_ = false;
  tensor_list results_;
  decltype(request::back) back_;
  std::optional<ties> ties_;
};

}  // namespace

template <class Change>
void job::end(Change&& change) {
  const std::lock_guard lock(mutex_);
  change();
  done_ = true;
  changed_.notify_all();
}

void job::finish(tensor_list results, const outcome& said) {
  end([&] {
    results_ = std::move(results);
    said_ = said;
  });
}

void job::finish_here(tensor_list results, const outcome& said) {
  way_.end();
  finish(std::move(results), said);
}

void job::fail(std::exception_ptr why) {
  end([&] { error_ = std::move(why); });
}

void job::wait() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, wait_slice, [&] { return done_; })) {
    lock.unlock();
    if (owner_ != getpid()) throw value_error("this call was started before the process was forked: its parent has it");
    if (is_ending()) throw interrupted("the process ends, and this call is not done");
    throw_if_interrupted();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
}

tensor_list job::take() {
  const std::lock_guard lock(mutex_);
  place_.reset();
  return std::exchange(results_, {});
}

void job::let_go() {
  const std::lock_guard lock(mutex_);
  place_.reset();
}

bool job::done() const {
  const std::lock_guard lock(mutex_);
  return done_ && way_.is_over();
}

progress::place take_place(engine& moves, operation op) {
  if (auto place = moves.line()->take_place()) return place;
  throw value_error(std::string(name(op)) + ": " + std::to_string(progress::most) +
                    " calls of this group are in flight, as many as may be: wait() for some before starting more");
}

bool runs_apart(const engine& moves, const at::Tensor& x) {
  return moves.carries_apart(device_from(x.device().type())) && !is_capturing(x.device());
}

std::shared_ptr<job> launch(const std::shared_ptr<engine>& moves, const arguments& with, const tensor_list& tensors,
                            const operation_on& run, progress::place held) {
  // Before the job, which begins behind what is on the stream by now.
  const auto given = [&] {
    try {
      return without_graph(tensors);
    } catch (const std::exception& error) {  // no memory: the others number this call
      refuse_in_turn(moves, with, error.what());
    }
  }();
  auto made = std::make_shared<job>(std::move(held), tensors[0].device());
  if (is_ending()) {  // nothing is carried on any more: here and now, as the plain call
    const apart_here as_others_do(true);
    made->finish_here(run_below(run, tensors, {}), last_outcome());
    return made;
  }
  moves->line()->queue([&] {
    auto now = call_of(with);
    now.head.apart = true;
    moves->number(now);
    return [made, moves, now, given, run, as = mode{}] {
      const asked_here question([&] { throw_if_pointless(*moves); });
      try {
        const numbered_call number(moves, now);
        auto results = made->run(given, [&] { return run_below(run, given, as); });
        made->finish(std::move(results), last_outcome());
      } catch (...) {
        made->fail(std::current_exception());
      }
    };
  });
  return made;
}

void refuse_in_turn(const std::shared_ptr<engine>& moves, arguments with, const std::string& why) {
  with.follows = 0;  // nobody has been heard when the next call gets its number
  std::string text;
  moves->line()->queue([&] {
    auto now = call_of(with);
    moves->number(now);
    text = title(now.head) + ": rank " + std::to_string(moves->rank()) + " refuses: " + cut_refusal(why);
    return [moves, now, with, why] {
      const asked_here question([&] { throw_if_pointless(*moves); });
      try {
        const numbered_call number(moves, now);
        collective(with).refuse_if(why);
      } catch (const std::exception&) {
        // It was thrown where the call was started.
      }
    };
  });
  throw value_error(text);
}

std::shared_ptr<call_under_way> start(const request& what) {
  return translated([&]() -> std::shared_ptr<call_under_way> {
    const auto moves = find_engine(what.with.group);
    auto place = take_place(*moves, what.with.op);
    auto why = check_arguments(what.with, moves->world());
    if (!why) why = what.why;
    if (why) refuse_in_turn(moves, what.with, *why);
    if (!runs_apart(*moves, what.tensors[0])) return finished(what.run(what.tensors));
    auto running = launch(moves, what.with, what.tensors, what.run, std::move(place));
    return std::make_shared<started_call>(std::move(running), what);
  });
}

std::shared_ptr<call_under_way> finished(tensor_list results) {
  const auto over = std::make_shared<job>(nullptr, results[0].device());
  over->finish_here(std::move(results), {});
  return std::make_shared<started_call>(over);
}

}  // namespace sheaf::async
