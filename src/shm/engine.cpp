// SPDX-License-Identifier: MIT
#include "shm/engine.hpp"

#include "shm/reduce_scatter.hpp"

namespace sheaf::shm {

engine::engine(membership of)
    : place_(std::move(of.place)),
      rank_(of.rank),
      world_(place_->shape().world),
      told_(std::move(of.told)),
      lives_(std::move(of.lives)),
      pool_(std::make_shared<pool>(place_, rank_, of.pool_bytes)),
      warm_(std::make_shared<warm_memory>(of.pool_bytes / world_)),
      worth_sharing_(of.worth_sharing > 0 ? of.worth_sharing : worth_sharing(world_)),
      seen_(world_),
      cores_(world_, core_count()) {
  this->of(rank_).unfenced = allow_fences();
}

void engine::take_turn(call& now) {
  turns_.take(now);
  now_ = {};
}

void engine::end(const call& now) noexcept {
  if (now_.segment && !now_.leased) pool_->release(*now_.segment);
  turns_.end(now);
}

void engine::publish(std::atomic<std::uint64_t> board::* word, std::uint64_t value) {
  auto& own = of(rank_);
  shm::publish(own, own.*word, value);
}

// A peer that has a core by itself is on its way. One that shares this core cannot come before it is given way to, and
// one that may have to wait for a core will be late.
int engine::tries_for(int peer) const {
  constexpr int many = 200;
  return cores_.are_enough() && cores_.of(peer) != cores_.of(rank_) ? many : 1;
}

void engine::throw_if_dead(std::uint64_t sequence) const {
  for (int peer = 0; peer < static_cast<int>(lives_.size()); ++peer) {
    if (!lives_[peer]) continue;
    const auto why = lives_[peer]->ended();
    // Asked in this order: whoever had left the call before it ended owes it nothing.
    if (why && !has_left(peer, sequence)) throw peer_gone{peer, *why};
  }
}

void engine::leave_core_of(int peer) {
  if (!cores_.are_enough() || rank_ < peer) return;
  if (cores_.of(peer) != ::sched_getcpu()) return;
  if (const auto core = cores_.free_one(rank_, own_cores())) move_to(*core);
}

void engine::spread_out() {
  if (cores_.are_enough() || !cores_.have_changed()) return;
  if (cores_.of(rank_) != ::sched_getcpu()) return;  // the kernel did something about it
  if (const auto core = cores_.even_one(rank_, own_cores())) move_to(*core);
}

patience engine::patience_for(const call& now) {
  return patience(*told_, now, [this](int peer) { return last_seen(peer); });
}

std::optional<note> engine::last_seen(int peer) const {
  std::uint64_t last = 0;
  for (std::uint64_t at = 0; at < ring_slots; ++at) {
    last = std::max(last, place_->slot_of(peer, at).posted.load(std::memory_order_acquire));
  }
  const auto read = last > 0 ? frame_of(peer, last) : std::nullopt;
  const bool stopped = peer < static_cast<int>(lives_.size()) && lives_[peer] && lives_[peer]->is_stopped();
  if (!read && !stopped) return std::nullopt;
  const auto where = "was in " + (read ? sheaf::describe(read->head) : "no call");
  return note{told_->name(), last, where + (stopped ? ", and is stopped" : "")};
}

void engine::throw_deserted(patience& waiting, int peer) const {
  try {
    throw_if_dead(waiting.now().head.sequence);
  } catch (const peer_gone& gone) {
    waiting.lost(gone.peer, gone.why);
  }
  waiting.deserted(peer, of(peer).left.load(std::memory_order_acquire));
}

std::vector<int> engine::missing(const std::function<bool(int)>& is_there) const {
  std::vector<int> ranks;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer != rank_ && !is_there(peer)) ranks.push_back(peer);
  }
  return ranks;
}

void engine::await_step(patience& waiting, int peer, std::uint64_t step, std::atomic<std::uint64_t> board::* word) {
  const auto sequence = waiting.now().head.sequence;
  const auto wanted = moment(sequence, step);
  const auto reached = [&](int one) { return (of(one).*word).load(std::memory_order_acquire) >= wanted; };
  await(waiting, peer, [&](int one) { return reached(one) || has_left(one, sequence); });
  // What it did before it left was published before that.
  if (!reached(peer)) throw_deserted(waiting, peer);
}

void engine::await_step_of_all(patience& waiting, std::uint64_t step, std::atomic<std::uint64_t> board::* word) {
  for (int turn = 1; turn < world_; ++turn) await_step(waiting, (rank_ + turn) % world_, step, word);
}

std::optional<int> engine::segment_for(const call& now, std::size_t bytes) {
  if (!now_.decided) now_.segment = pool_->choose(census_of(now.head.sequence), bytes);
  now_.decided = true;
  return now_.segment;
}

memory engine::take_result(const call& now, const layout& at) {
  const bool scatters = is_reduction(now.head.op);
  const auto bytes = static_cast<std::size_t>(scatters ? at.block_bytes(rank_) : at.bytes());
  if (!scatters) {
    const auto segment = segment_for(now, bytes);
    return segment && !pool_->prefers_private(bytes) ? lease(*segment, 0, bytes) : warm_->take(bytes);
  }
  if (!is_shared_out(at)) return warm_->take(bytes);
  const auto places = owner_places(at);
  const auto segment = segment_for(now, places.back());
  if (!segment) return warm_->take(bytes);
  return bytes > 0 ? lease(*segment, places[rank_], bytes) : memory{};
}

memory engine::lease(int segment, std::size_t first, std::size_t bytes) {
  now_.leased = true;
  return pool_->lease(segment, first, bytes);
}

// Small memory comes warm from the allocator.
memory engine::take_private(std::size_t bytes) {
  constexpr std::size_t worth_keeping = std::size_t{16} << 10;
  return bytes >= worth_keeping ? warm_->take(bytes) : memory{};
}

std::string engine::describe() const {
  const auto now = pool_->count();
  const auto mib = [](std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  return "shm (all " + std::to_string(world_) + " ranks are processes of one host; " + std::to_string(now.used) +
         " results and " + mib(now.resident) + " of " + mib(now.limit) + " in shared memory)";
}

void engine::report(const call& now, const std::string& said) { patience_for(now).tell_others(said); }

}  // namespace sheaf::shm
