// SPDX-License-Identifier: MIT
#include "torch/collective.hpp"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <sheaf/error.hpp>

#include "core/skips.hpp"
#include "core/text.hpp"
#include "core/verdict.hpp"
#include "torch/device.hpp"
#include "torch/group.hpp"

namespace sheaf {
namespace {

// Without this rank, since no header tells them that it does not come. Tensors that were not looked at may be a
// device's.
bool others_go_on(const engine& moves, const call& now) {
  return now.head.sized && !moves.checks_device_call(now.head);
}

}  // namespace

bool& apart_here::next() {
  thread_local bool is_apart = false;
  return is_apart;
}

numbered_call*& numbered_call::next() {
  thread_local numbered_call* waiting = nullptr;
  return waiting;
}

numbered_call::numbered_call(std::shared_ptr<engine> moves, call now) : moves_(std::move(moves)), now_(std::move(now)) {
  next() = this;
}

numbered_call::~numbered_call() {
  if (!next()) return;
  next() = nullptr;
  if (others_go_on(*moves_, now_)) moves_->lose_step(now_);
  try {
    moves_->take_turn(now_);
    moves_->end(now_);
  } catch (const std::exception&) {
    // It has ended.
  }
}

collective::turn::turn(collective& owner, bool local, bool numbered)
    : of(owner), moves(*owner.moves_), now(owner.now_), exceptions(std::uncaught_exceptions()) {
  if (local) return;
  if (!numbered) moves.number(now);
  try {
    moves.take_turn(now);
  } catch (...) {
    if (others_go_on(moves, now)) moves.lose_step(now);
    moves.skip(of.gives_up_.value_or(0));
    throw;
  }
}

collective::turn::~turn() {
  now.failed = std::uncaught_exceptions() > exceptions;
  if (now.head.sequence == 0) return;
  const bool alone = of.carried_ != carriage::host && (of.is_expected_ || others_go_on(moves, now));
  if (now.failed && alone) moves.lose_step(now);
  if (now.failed) moves.skip(of.gives_up_.value_or(0));  // first: others that see the call over see these over, too
  moves.end(now);
}

collective::collective(const arguments& with)
    : collective(with, with.local ? nullptr : std::exchange(numbered_call::next(), nullptr)) {}

collective::collective(const arguments& with, numbered_call* given)
    : moves_(given ? given->moves_ : find_engine(with.group)),
      now_(given ? given->now_ : call_of(with)),
      gives_up_(given ? std::nullopt : std::optional(now_.head.follows)),
      turn_(*this, with.local, given != nullptr) {
  last_outcome() = {static_cast<std::int64_t>(now_.head.sequence), false};
  if (!with.local) last_number() = last_outcome().sequence;
  now_.checked = moves_->checks_sized_calls();
  if (!with.local && std::exchange(apart_here::next(), false)) now_.head.apart = true;
  if (const auto why = check_arguments(with, moves_->world())) refuse_if(why);
  now_.head.mode = gradient_from(with.mode);
}

void collective::refuse_if(const refusal& why) {
  if (!why) return;
  now_.head.refusal = cut_refusal(*why);  // as the others will read it
  if (is_local()) throw value_error(std::string(name(now_.head.op)) + ": " + *why);
  is_expected_ = false;  // where they listen, others are told, or refuse the same
  if (carried_ != carriage::host && others_go_on(*moves_, now_)) moves_->lose_step(now_);
  std::vector<std::optional<frame>> frames;
  try {
    frames = moves_->refuse(now_);
  } catch (const left_behind& error) {
    give_up_at_most(error.missed);
  }
  if (frames.empty()) {
    // Nobody else was heard: the text is what the others will come to if this rank alone refuses.
    throw value_error(title(now_.head) + ": rank " + std::to_string(rank()) + " refuses: " + now_.head.refusal);
  }
  give_up_as_others(given_up_by_all(frames));
  throw value_error(*verdict(frames));
}

void collective::give_up_as_others(std::uint8_t calls) {
  if (gives_up_) gives_up_ = calls;
}

void collective::give_up_at_most(std::uint64_t calls) {
  if (gives_up_) gives_up_ = static_cast<std::uint8_t>(std::min<std::uint64_t>(*gives_up_, calls));
}

template <class Body>
auto collective::in_step(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const disagreement& error) {
    is_expected_ = false;
    give_up_as_others(error.given_up);
    throw;
  } catch (const left_behind& error) {
    // Nobody hears all ranks in this call any more. But who is past it may have moved a device's data in a call of this
    // number without a header, where there are such.
    if (moves_->checks_device_call(header{})) is_expected_ = false;
    give_up_at_most(error.missed);
    throw;
  }
}

void collective::take(const at::Tensor& x, std::int64_t dim) {
  if (x.defined()) look_at(x);
  refuse_if(check_tensor(x, dim));
  refuse_if(check_carried(x, carried_ != carriage::none));
  refuse_if_out_of_step();
}

carriage collective::look_at(const at::Tensor& x) {
  carried_ = moves_->carries(device_from(x.device().type()));
  now_.checked = carried_ == carriage::device ? moves_->checks_device_call(now_.head) : moves_->checks_sized_calls();
  return carried_;
}

void collective::refuse_if_out_of_step() {
  if (!is_on_device() || is_local()) return;
  const auto since = moves_->out_of_step_since();
  if (since.empty()) return;
  refuse_if("this rank is out of step since " + since +
            ", which it gave up while others may have carried on: make a new group");
}

void collective::describe(const at::Tensor& x, std::int64_t dim, recording records) {
  now_.head.tensors.push_back(record_of(x, dim));
  now_.head.records_gradient = records;
}

void collective::describe(record tensor) { now_.head.tensors.push_back(tensor); }

layout collective::place(std::vector<std::int64_t> sizes) {
  try {
    return make_layout(tensor().dims(), tensor().dim, std::move(sizes), itemsize(tensor().type));
  } catch (const value_error& error) {
    refuse_if(error.what());
    throw;
  }
}

template <class Body>
auto collective::reporting(Body&& body) -> decltype(body()) {
  try {
    return in_step(body);
  } catch (const value_error&) {
    throw;  // a peer's refusal, which every rank hears
  } catch (const rank_error&) {
    throw;  // of another rank: it was told where it was seen
  } catch (const interrupted&) {
    throw;  // likewise
  } catch (const std::exception& error) {
    moves_->report(now_, "failed in " + sheaf::describe(now_.head) + ": " + first_line(error));
    throw;
  }
}

at::Tensor collective::allocate(const at::Tensor& like, std::int64_t dim, std::int64_t rows, const layout& at,
                                bool inlined) {
  return reporting([&] {
    if (is_on_device()) return empty_with_rows(like, dim, rows);
    const auto bytes = at.outer * rows * at.row_bytes;
    auto own = inlined ? moves_->take_private(static_cast<std::size_t>(bytes)) : moves_->take_result(now_, at);
    return tensor_in(std::move(own), like, dim, rows);
  });
}

memory collective::take_result(const layout& at) {
  return reporting([&] { return moves_->take_result(now_, at); });
}

bool collective::is_inlined(std::int64_t bytes) const {
  return carried_ == carriage::host && static_cast<std::size_t>(bytes) <= moves_->inline_bytes() &&
         static_cast<std::size_t>(world()) <= max_inline_ranks;
}

void collective::give(const std::vector<std::int64_t>& sizes, std::string shown) {
  now_.numbers = as_given(now_.head, static_cast<std::size_t>(world()), sizes);
  now_.given = shown.empty() && now_.numbers.size() != sizes.size() ? list(sizes) : std::move(shown);
}

const heard& collective::learn(const payload& data) {
  // A rank that gives up from here on has said that it comes: late ones will find that, and move a device's data, be it
  // by a next call, whose sizes they learned here and which may have no header.
  is_expected_ = now_.head.op != operation::gather_sizes || !moves_->checks_device_call(now_.head);
  const auto& all = in_step([&]() -> const heard& {
    const auto& said = moves_->exchange(now_, data);
    if (const auto error = said.verdict()) throw disagreement(*error, said.given_up());
    return said;
  });
  auto& told = last_outcome();
  told.any_rank_records = all.any_records();
  if (now_.head.op == operation::all_gather_coalesced) {
    for (std::size_t i = 0; i < now_.head.tensors.size(); ++i) told.any_rank_records_of.push_back(all.any_records(i));
  }
  // One rank may have started what others call: all go its way.
  now_.head.apart = all.any_is_apart();
  return all;
}

void collective::learn_if_checked() {
  if (now_.has_headers()) learn({});
}

void collective::all_gather(const layout& at, const at::Tensor& own, const at::Tensor& result) {
  reporting([&] { moves_->all_gather(now_, at, memory_of(own), memory_of(result)); });
}

void collective::reduce_scatter(const layout& at, const at::Tensor& whole, const at::Tensor& own) {
  reporting([&] { moves_->reduce_scatter(now_, at, reduction_of(mode()), memory_of(whole), memory_of(own)); });
}

void collective::all_gather(const bundle& all) {
  reporting([&] { moves_->all_gather_coalesced(now_, all); });
}

void collective::reduce_scatter(const bundle& all, memory own) {
  reporting([&] { moves_->reduce_scatter_coalesced(now_, all, std::move(own)); });
}

void check_inlined(std::size_t rank, std::size_t got, std::int64_t expected) {
  if (static_cast<std::int64_t>(got) == expected) return;
  throw rank_error("rank " + std::to_string(rank) + " sent " + std::to_string(got) + " bytes of " +
                   std::to_string(expected));
}

recording recording_of(const at::Tensor& x) {
  // torch calls no autograd for a tensor of inference mode, so such a rank would never come to the backward.
  if (!c10::GradMode::is_enabled() || x.is_inference()) return recording::off;
  return x.requires_grad() ? recording::on : recording::idle;
}

reduction reduction_of(gradient mode) { return mode == gradient::mean ? reduction::mean : reduction::sum; }

outcome& last_outcome() {
  thread_local outcome last;
  return last;
}

std::int64_t& last_number() {
  thread_local std::int64_t last = 0;
  return last;
}

}  // namespace sheaf
