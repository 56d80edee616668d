// SPDX-License-Identifier: MIT
#include "torch/async.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <sheaf/error.hpp>

#include "core/chore.hpp"
#include "core/interrupt.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"

namespace sheaf::async {
namespace {

// The same data with nothing of Python's: what the group's thread drops must not need Python's lock, and what it runs
// must see whether gradients are recorded.
tensor_list without_graph(const tensor_list& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below;
  tensor_list result;
  for (const auto& one : tensors) {
    result.push_back(one.detach());
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
  explicit started_call(tensor_list results) : results_(std::move(results)) {}
  // What is dropped goes on, and is counted no more: how far it has come differs by rank.
  ~started_call() override {
    if (running_) running_->let_go();
  }

  tensor_list wait() override {
    const auto running = still_running();
    if (!running) return results_;
    wait_for(*running);
    const std::lock_guard lock(mutex_);
    if (!running_) return results_;  // another thread was faster
    results_ = running->take();
    if (ties_->any()) {
      for (const auto& how : back_(results_, running->said())) ties_->tie(results_, how);
    }
    running_.reset();
    return results_;
  }

  bool done() const override {
    const auto running = still_running();
    return !running || running->done();
  }

 private:
  static void wait_for(job& running) {
    try {
      translated([&] { running.wait(); });
    } catch (...) {
      if (running.done()) running.let_go();  // it may also be this wait that ended early
      throw;
    }
  }

  std::shared_ptr<job> still_running() const {
    const std::lock_guard lock(mutex_);
    return running_;
  }

  mutable std::mutex mutex_;  // guards all below
  std::shared_ptr<job> running_;
  tensor_list results_;
  decltype(request::back) back_;
  std::optional<ties> ties_;
};

// One that a device carries on: in the order of the stream that was current where the call was started.
class call_on_stream final : public call_under_way {
 public:
  call_on_stream(tensor_list results, c10::Device device)
      : results_(std::move(results)), device_(device), started_on_(current()), over_(device.type()) {
    over_.record(started_on_);
  }

  // The current stream waits, not this thread.
  tensor_list wait() override {
    const auto here = current();
    if (here != started_on_) {
      over_.block(here);
      for (const auto& one : results_) {
        if (one.device() == device_) one.record_stream(here);
      }
    }
    return results_;
  }

  bool done() const override { return over_.query(); }

 private:
  c10::Stream current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  const tensor_list results_;
  const c10::Device device_;
  const c10::Stream started_on_;
  c10::Event over_;
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
  return done_;
}

std::shared_ptr<job> launch(const std::shared_ptr<engine>& moves, const arguments& with, const tensor_list& tensors,
                            const operation_on& run, progress::place held) {
  auto made = std::make_shared<job>(std::move(held));
  if (is_ending()) {  // nothing is carried on any more: here and now, as the plain call
    made->finish(run_below(run, tensors, {}), last_outcome());
    return made;
  }
  moves->line()->queue([&] {
    auto now = call_of(with);
    moves->number(now);
    return [made, moves, now, given = without_graph(tensors), run, as = mode{}] {
      const asked_here question([&] { throw_if_pointless(*moves); });
      try {
        const numbered_call number(moves, now);
        auto results = run_below(run, given, as);
        made->finish(std::move(results), last_outcome());
      } catch (...) {
        made->fail(std::current_exception());
      }
    };
  });
  return made;
}

void refuse_in_turn(const std::shared_ptr<engine>& moves, const arguments& with, const std::string& why) {
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
    auto place = moves->line()->take_place();
    if (!place) {
      throw value_error(std::string(name(what.with.op)) + ": " + std::to_string(progress::most) +
                        " calls of this group are in flight, as many as may be: wait() for some before starting more");
    }
    auto why = check_arguments(what.with, moves->world());
    if (!why) why = what.why;
    if (why) refuse_in_turn(moves, what.with, *why);
    const auto device = what.tensors[0].device();
    if (moves->carries(device_from(device.type())) == carriage::device) {
      auto results = what.run(what.tensors);
      if (device.is_cpu()) return finished(std::move(results));
      return std::make_shared<call_on_stream>(std::move(results), device);
    }
    auto running = launch(moves, what.with, what.tensors, what.run, std::move(place));
    return std::make_shared<started_call>(std::move(running), what);
  });
}

std::shared_ptr<call_under_way> finished(tensor_list results) {
  return std::make_shared<started_call>(std::move(results));
}

}  // namespace sheaf::async
