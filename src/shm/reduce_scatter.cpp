// SPDX-License-Identifier: MIT
// Each rank reduces a share of the result, in rank order. In steps, every rank puts its contribution to every share
// into its staging buffer, and every reducer sums what all ranks put there for it.
#include "shm/reduce_scatter.hpp"

#include <time.h>

#include <algorithm>
#include <sheaf/error.hpp>

#include "core/bundle.hpp"
#include "core/parallel.hpp"
#include "core/shares.hpp"
#include "shm/engine.hpp"

namespace sheaf::shm {
namespace {

// What a rank stages in a step. More of all ranks together leaves the caches, less waits too often.
constexpr std::int64_t staged_bytes = std::int64_t{1} << 20;
constexpr std::int64_t smallest_chunk = std::int64_t{32} << 10;

// What a rank stages for one reducer in a step: there are two buffers for every one in its staging memory, and two
// steps or more where that is not too little, so that some sum while others still contribute.
std::int64_t staged_chunk(const layout& at, bool balanced) {
  const auto world = static_cast<std::int64_t>(at.sizes.size());
  std::int64_t share = at.bytes() / world;
  for (int owner = 0; !balanced && owner < world; ++owner) share = std::max(share, at.block_bytes(owner));
  const auto room = static_cast<std::int64_t>(geometry::staging_bytes) / (2 * world);
  const auto most = std::min(room, std::max(smallest_chunk, staged_bytes / world));
  const auto half = share / 2 + 127;
  return std::clamp(half, std::min(smallest_chunk, most), most) / 64 * 64;
}

// Threads are not woken for less in all, nor one for less.
constexpr std::int64_t worth_threads = std::int64_t{4} << 20;
constexpr std::int64_t slice_bytes = std::int64_t{64} << 10;

// body(number, first, count) for all slices of `pieces` pieces of at most `chunk` bytes, on so many threads.
template <class Body>
void for_slices(std::int64_t threads, std::int64_t pieces, std::int64_t chunk, Body&& body) {
  threads = std::min(threads, pieces * chunk / slice_bytes);
  if (threads <= 1) {
    for (std::int64_t number = 0; number < pieces; ++number) body(number, 0, chunk);
    return;
  }
  const auto each = (chunk + slice_bytes - 1) / slice_bytes;
  parallel(threads, [&](std::int64_t thread) {
    for (auto slice = thread; slice < pieces * each; slice += threads) {
      body(slice / each, slice % each * slice_bytes, slice_bytes);
    }
  });
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// Less the more ranks there are to help. What others sum for an owner lies in a segment, whose lines they first have to
// get from the core that read the last sums there.
std::int64_t worth_sharing(int world) {
  const auto ranks = static_cast<std::int64_t>(world);
  return std::max(std::int64_t{256} << 10, (std::int64_t{32} << 20) / (ranks * ranks));
}

bool engine::is_shared_out(const layout& at) const { return is_lopsided(at, worth_sharing_); }

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
          const std::vector<std::size_t>& places)
      : engine_(with),
        waiting_(waiting),
        all_(all),
        own_(own),
        segment_(segment),
        places_(places),
        chunk_(staged_chunk(all.packed(), segment.has_value())),
        plan_(all.packed(), chunk_, segment.has_value()),
        next_(with.readers_of(waiting.now().head, all.packed().bytes())),
        streamed_(is_streamed(all.packed().bytes() / with.world(), readers::near)),
        learns_(with.rank() == 0 && all.packed().bytes() >= worth_learning),
        threads_(all.packed().bytes() >= worth_threads ? thread_count() : 1) {}

  void run() {
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
    if (learns_ && moved_ > 0) {
      const auto of = size_class(movement_of(waiting_.now().head), all_.packed().bytes());
      engine_.habits_.learn(of, next_, seconds_ / static_cast<double>(moved_));
    }
  }

 private:
  std::byte* buffer(int from, int to, std::int64_t step) const {
    return engine_.place_->staging(from) + (step % 2 * engine_.world_ + to) * chunk_;
  }

  // body(), and what it took of this thread's time.
  template <class Body>
  void moving(Body&& body) {
    const auto begin = learns_ ? thread_seconds() : 0;
    body();
    if (learns_) seconds_ += thread_seconds() - begin;
  }

  void contribute(std::int64_t step) {
    const auto reducer = [&](std::int64_t turn) {
      return static_cast<int>((engine_.rank_ + 1 + turn) % engine_.world_);
    };
    moving([&] {
      for_slices(threads_, engine_.world_ - 1, chunk_, [&](std::int64_t turn, std::int64_t first, std::int64_t count) {
        const auto* part = plan_.at(reducer(turn), step);
        if (!part || first >= part->bytes) return;
        auto* to = buffer(engine_.rank_, reducer(turn), step) + first;
        all_.pack(part->owner, part->first + first, std::min(count, part->bytes - first), to, next_);
      });
    });
    for (int turn = 0; turn < engine_.world_ - 1; ++turn) {
      if (const auto* part = plan_.at(reducer(turn), step)) moved_ += part->bytes;
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

  void sum(const piece& part, const std::vector<const std::byte*>& sources) {
    for_slices(threads_, 1, part.bytes, [&](std::int64_t, std::int64_t first, std::int64_t count) {
      auto from = sources;
      for (auto& one : from) one += first;
      all_.sum(part.owner, part.first + first, from, out(part) + first, std::min(count, part.bytes - first), streamed_);
      if (streamed_) end_streams();
    });
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
      moving([&] { sum(*part, sources); });
      moved_ += engine_.world_ * part->bytes;
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
  const readers next_;   // of what this rank writes
  const bool streamed_;  // sums go past the caches, being as large as those
  const bool learns_;    // for all ranks
  const std::int64_t threads_;
  double seconds_ = 0;  // CPU time of this thread, without waiting
  std::int64_t moved_ = 0;
  memory packed_;  // a piece of the own contribution that lies in no run
};

void engine::reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) {
  reduce_scatter_coalesced(now, {rank_, {{at, now.head.tensors[0].type, op, std::move(whole), own}}}, own);
}

void engine::reduce_scatter_coalesced(const call& now, const bundle& all, memory own) {
  spread_out();
  auto waiting = patience_for(now);
  const auto& at = all.packed();
  const bool shared_out = is_shared_out(at);
  const auto places = shared_out ? owner_places(at) : std::vector<std::size_t>();
  const auto segment = shared_out ? segment_for(now, places.back()) : std::nullopt;
  scatter(*this, waiting, all, own, segment, places).run();
  if (segment && own.size > 0 && own.data != place_->view(*segment) + places[rank_]) {
    std::copy_n(place_->shared(*segment) + places[rank_], own.size, own.data);
  }
  waiting.finish();
}

}  // namespace sheaf::shm
