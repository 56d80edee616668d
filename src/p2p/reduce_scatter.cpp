// SPDX-License-Identifier: MIT
// Every piece of the result has one rank that reduces it: it receives that piece from all others, sums in rank order
// and hands it to its owner. Pieces keep memory small and let sums run beside transfers.
#include <algorithm>

#include "core/bundle.hpp"
#include "core/shares.hpp"
#include "p2p/engine.hpp"
#include "p2p/posting.hpp"
#include "p2p/tags.hpp"

namespace sheaf::p2p {
namespace {

// How many steps messages are posted ahead of the sum.
constexpr std::int64_t window = 3;

// From here on sharing out the sums beats each owner's summing its own.
constexpr std::int64_t large_block = std::int64_t{8} << 20;

// All that is under way fits in the scratch memory; of 256 KiB to 4 MiB, 2 MiB was the fastest over Gloo.
std::int64_t piece_bytes(int world) {
  const auto share = static_cast<std::int64_t>(scratch_bytes) / (window * std::max(world - 1, 1));
  return std::clamp<std::int64_t>(share, 64 << 10, 2 << 20);
}

// One reduce_scatter of one rank.
class exchange_and_sum {
 public:
  exchange_and_sum(channel& link, patience& waiting, const bundle& all, memory own, shares plan, warm_memory& pool)
      : all_(all),
        own_(std::move(own)),
        rank_(link.rank()),
        world_(link.world()),
        plan_(std::move(plan)),
        scratch_(pool),
        tag_(waiting.now(), all),
        messages_(link, waiting) {}

  void run() {
    receive_finished();
    const auto steps = plan_.steps();
    received_.resize(steps);
    sent_.resize(steps);
    for (std::int64_t step = 0; step < std::min(window, steps); ++step) post(step);
    for (std::int64_t step = 0; step < steps; ++step) {
      if (step + window < steps) post(step + window);
      sum(step);
      // Peers are at most a window behind: this bounds what is under way without holding anybody up.
      if (step >= window) {
        for (const auto message : sent_[step - window]) messages_.wait(message);
      }
    }
    messages_.wait_all();
  }

 private:
  // My rows that other ranks reduce arrive straight in the result.
  void receive_finished() {
    for (const auto& piece : plan_.pieces()) {
      if (piece.owner == rank_ && piece.reducer != rank_) {
        messages_.receive(piece.reducer, tag_(2 * piece.number + 1), own_.slice(piece.first, piece.bytes));
      }
    }
  }

  // What this rank contributes to a piece, contiguous.
  memory contribution(const piece& part) {
    if (auto run = all_.run(part.owner, part.first, part.bytes); run.data) return run;
    auto packed = scratch_.take(part.bytes);
    all_.pack(part.owner, part.first, part.bytes, packed.data);
    return packed;
  }

  void post(std::int64_t step) {
    for (int turn = 0; turn < world_; ++turn) {
      const int reducer = (rank_ + turn) % world_;
      const auto* part = plan_.at(reducer, step);
      if (!part) continue;
      if (reducer != rank_) {
        sent_[step].push_back(messages_.send(reducer, tag_(2 * part->number), contribution(*part)));
        continue;
      }
      auto& arrivals = received_[step];
      arrivals.sources.resize(world_);
      for (int peer = 0; peer < world_; ++peer) {
        if (peer == rank_) continue;
        arrivals.sources[peer] = scratch_.take(part->bytes);
        arrivals.messages.push_back(messages_.receive(peer, tag_(2 * part->number), arrivals.sources[peer]));
      }
    }
  }

  void sum(std::int64_t step) {
    const auto* part = plan_.at(rank_, step);
    if (!part) return;
    auto& arrivals = received_[step];
    for (const auto message : arrivals.messages) messages_.wait(message);
    arrivals.sources[rank_] = contribution(*part);
    std::vector<const std::byte*> sources;
    for (const auto& source : arrivals.sources) sources.push_back(source.data);

    const bool mine = part->owner == rank_;
    auto out = mine ? own_.slice(part->first, part->bytes) : scratch_.take(part->bytes);
    all_.sum(part->owner, part->first, sources, out.data, out.size);
    if (!mine) sent_[step].push_back(messages_.send(part->owner, tag_(2 * part->number + 1), std::move(out)));
    arrivals.sources.clear();
  }

  struct arrivals {
    std::vector<memory> sources;  // by rank
    std::vector<std::size_t> messages;
  };

  const bundle& all_;
  const memory own_;
  const int rank_;
  const int world_;
  const shares plan_;
  warm_memory& scratch_;
  const data_tags tag_;
  posting messages_;
  std::vector<arrivals> received_;              // by step
  std::vector<std::vector<std::size_t>> sent_;  // by step
};

}  // namespace

void engine::reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) {
  auto waiting = on_the_way(now);
  scatter(waiting, {rank(), {{at, now.head.tensors[0].type, op, std::move(whole), own}}}, own);
}

void engine::reduce_scatter_coalesced(const call& now, const bundle& all, memory own) {
  auto waiting = on_the_way(now);
  scatter(waiting, all, std::move(own));
}

void engine::scatter(patience& waiting, const bundle& all, memory own) {
  const auto& at = all.packed();
  greet(waiting);
  const shares plan(at, std::min(settings_.message_bytes, piece_bytes(world())), is_lopsided(at, large_block));
  exchange_and_sum(*link_, waiting, all, std::move(own), plan, *scratch_).run();
  waiting.finish();
}

}  // namespace sheaf::p2p
