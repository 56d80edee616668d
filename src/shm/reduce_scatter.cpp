// SPDX-License-Identifier: MIT
// Each rank reduces a share of the result, in rank order. Where ranks can read each other's memory, it fetches what the
// others bring to its share by itself. Elsewhere it goes in steps: every rank puts its contribution to every share into
// its staging buffer, and every reducer sums what all ranks put there for it.
#include "shm/reduce_scatter.hpp"

#include <algorithm>
#include <cerrno>
#include <sheaf/error.hpp>
#include <system_error>

#include "core/bundle.hpp"
#include "core/parallel.hpp"
#include "core/shares.hpp"
#include "shm/engine.hpp"
#include "shm/reach.hpp"

namespace sheaf::shm {
namespace {

constexpr std::int64_t worth_sharing = std::int64_t{256} << 10;
// Larger ones leave the cache, smaller ones wait too often.
constexpr std::int64_t largest_chunk = std::int64_t{1} << 20;

// Two buffers for every reducer in a rank's staging memory.
std::int64_t staged_chunk(int world) {
  return std::min<std::int64_t>(largest_chunk, geometry::staging_bytes / (2 * world) / 64 * 64);
}

// What is fetched of all others at a time stays in the cache of a core.
std::int64_t fetched_chunk(int world) {
  constexpr std::int64_t least = 32 << 10, most = 256 << 10, together = 1 << 20;
  return std::clamp(together / std::max(1, world - 1) / 64 * 64, least, most);
}

// Every run of bytes costs the system a look at the other's page tables.
bool is_worth_reaching(const layout& at) {
  constexpr std::int64_t shortest_run = 4 << 10;
  return at.outer == 1 || std::ranges::all_of(at.sizes, [&](std::int64_t rows) {
           return rows == 0 || rows * at.row_bytes >= shortest_run;
         });
}

}  // namespace

bool is_shared_out(const layout& at) { return is_lopsided(at, worth_sharing); }

std::vector<std::size_t> owner_places(const layout& at) {
  std::vector<std::size_t> places{0};
  for (std::size_t owner = 0; owner < at.sizes.size(); ++owner) {
    const auto bytes = static_cast<std::size_t>(at.block_bytes(static_cast<int>(owner)));
    places.push_back(places.back() + up_to_page(bytes));
  }
  return places;
}

// One reduce_scatter of one rank.
class scatter {
 public:
  scatter(engine& with, patience& waiting, const bundle& all, const memory& own, std::optional<int> segment,
          const std::vector<std::size_t>& places, bool reaches)
      : engine_(with),
        waiting_(waiting),
        all_(all),
        own_(own),
        segment_(segment),
        places_(places),
        chunk_(reaches ? fetched_chunk(with.world()) : staged_chunk(with.world())),
        plan_(all.packed(), chunk_, segment.has_value()) {}

  void run_by_reach() {
    const auto sequence = waiting_.now().head.sequence;
    engine_.of(engine_.rank_)
        .shown.store(reinterpret_cast<std::uintptr_t>(all_.parts()[0].whole.data), std::memory_order_relaxed);
    engine_.publish(&board::progress, moment(sequence, 1));
    engine_.await_step_of_all(waiting_, 1, &board::progress);
    sum_fetched();
    // What a rank showed was there as long as it had not left.
    for (int peer = 0; peer < engine_.world_; ++peer) {
      if (peer != engine_.rank_ && engine_.has_left(peer, sequence)) engine_.throw_deserted(waiting_, peer);
    }
    engine_.publish(&board::consumed, moment(sequence, 1));
    engine_.await_step_of_all(waiting_, 1, &board::consumed);
  }

  void run_in_steps() {
    packed_ = engine_.warm_->take(chunk_);
    const auto steps = plan_.steps();
    for (std::int64_t step = 0; step < std::min<std::int64_t>(2, steps); ++step) contribute(step);
    for (std::int64_t step = 0; step < steps; ++step) {
      sum(step);
      if (step + 2 >= steps) continue;
      engine_.await_step_of_all(waiting_, step + 1, &board::consumed);
      contribute(step + 2);
    }
    if (segment_) engine_.await_step_of_all(waiting_, steps, &board::consumed);
  }

 private:
  std::byte* buffer(int from, int to, std::int64_t step) const {
    return engine_.place_->staging(from) + (step % 2 * engine_.world_ + to) * chunk_;
  }

  void contribute(std::int64_t step) {
    for (int turn = 1; turn < engine_.world_; ++turn) {
      const int reducer = (engine_.rank_ + turn) % engine_.world_;
      const auto* part = plan_.at(reducer, step);
      if (part) {
        all_.pack(part->owner, part->first, part->bytes, buffer(engine_.rank_, reducer, step));
      }
    }
    engine_.publish(&board::progress, moment(waiting_.now().head.sequence, step + 1));
  }

  const std::byte* own_contribution(const piece& part, std::byte* packed) const {
    if (const auto run = all_.run(part.owner, part.first, part.bytes); run.data) return run.data;
    all_.pack(part.owner, part.first, part.bytes, packed);
    return packed;
  }

  std::byte* out(const piece& part) const {
    return (segment_ ? engine_.place_->shared(*segment_) + places_[part.owner] : own_.data) + part.first;
  }

  // Its pieces, shared out over the rank's threads.
  void sum_fetched() {
    std::vector<const piece*> mine;
    for (std::int64_t step = 0; const auto* part = plan_.at(engine_.rank_, step); ++step) mine.push_back(part);
    const auto count = static_cast<std::int64_t>(mine.size());
    const auto threads = std::min<std::int64_t>(thread_count(), count);
    const auto scratch = engine_.warm_->take(threads * engine_.world_ * chunk_);
    std::atomic<std::int64_t> failed{0};  // which rank could not be read, and why
    parallel(threads, [&](std::int64_t thread) {
      auto* buffers = scratch.data + thread * engine_.world_ * chunk_;
      for (auto i = count * thread / threads; i < count * (thread + 1) / threads && failed == 0; ++i) {
        fetch_and_sum(*mine[i], buffers, failed);
      }
    });
    if (failed != 0) throw_unreachable(static_cast<int>(failed >> 32), static_cast<int>(failed & 0xffffffff));
  }

  void fetch_and_sum(const piece& part, std::byte* buffers, std::atomic<std::int64_t>& failed) const {
    std::vector<const std::byte*> sources(engine_.world_);
    for (int peer = 0; peer < engine_.world_; ++peer) {
      auto* buffer = buffers + peer * chunk_;
      sources[peer] = peer == engine_.rank_ ? own_contribution(part, buffer) : buffer;
      if (peer == engine_.rank_) continue;
      const auto error = reach(engine_.of(peer), all_.parts()[0].at, part.owner, part.first, part.bytes, buffer);
      if (error != 0) return failed.store(std::int64_t{peer} << 32 | error);
    }
    all_.sum(part.owner, part.first, sources, out(part), part.bytes);
  }

  // A rank that ends, or has left and given its memory back, is seen as such a moment later.
  [[noreturn]] void throw_unreachable(int peer, int error) {
    const auto sequence = waiting_.now().head.sequence;
    if (error != ESRCH && error != EFAULT) {
      throw rank_error(title(waiting_.now().head) + ": cannot read the memory of rank " + std::to_string(peer) + ": " +
                       std::generic_category().message(error) + ". SHEAF_REACH=0 does without");
    }
    engine_.await(waiting_, peer, [&](int one) { return engine_.has_left(one, sequence); });
    engine_.throw_deserted(waiting_, peer);
  }

  void sum(std::int64_t step) {
    if (const auto* part = plan_.at(engine_.rank_, step)) {
      std::vector<const std::byte*> sources(engine_.world_);
      for (int turn = 0; turn < engine_.world_; ++turn) {
        const int peer = (engine_.rank_ + turn) % engine_.world_;
        if (peer != engine_.rank_) engine_.await_step(waiting_, peer, step + 1, &board::progress);
        sources[peer] =
            peer == engine_.rank_ ? own_contribution(*part, packed_.data) : buffer(peer, engine_.rank_, step);
      }
      all_.sum(part->owner, part->first, sources, out(*part), part->bytes);
    }
    engine_.publish(&board::consumed, moment(waiting_.now().head.sequence, step + 1));
  }

  engine& engine_;
  patience& waiting_;
  const bundle& all_;
  const memory& own_;
  const std::optional<int> segment_;
  const std::vector<std::size_t>& places_;  // of the segment
  const std::int64_t chunk_;
  const shares plan_;
  memory packed_;  // a piece of the own contribution that lies in no run
};

void engine::reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) {
  reduce_scatter_coalesced(now, {rank_, {{at, now.head.tensors[0].type, op, std::move(whole), own}}}, own);
}

void engine::reduce_scatter_coalesced(const call& now, const bundle& all, memory own) {
  auto waiting = patience_for(now);
  const auto& at = all.packed();
  const bool shared_out = is_shared_out(at);
  const auto places = shared_out ? owner_places(at) : std::vector<std::size_t>();
  const auto segment = shared_out ? segment_for(now, places.back()) : std::nullopt;
  const bool reaches = all.parts().size() == 1 && is_worth_reaching(all.parts()[0].at) && all_reach(now.head.sequence);
  scatter run(*this, waiting, all, own, segment, places, reaches);
  reaches ? run.run_by_reach() : run.run_in_steps();
  if (segment && own.size > 0 && own.data != place_->view(*segment) + places[rank_]) {
    std::copy_n(place_->shared(*segment) + places[rank_], own.size, own.data);
  }
  waiting.finish();
}

}  // namespace sheaf::shm
