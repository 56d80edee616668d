// SPDX-License-Identifier: MIT
// Move: every rank sends its block to every other, straight into place. W - 1 messages each way, (W - 1) · own bytes
// out and N - own bytes in for each rank; N bytes of memory along dim 0, the peers' blocks once more for other dims.
// Several small tensors travel packed: the same messages as one.
#include <algorithm>

#include "core/bundle.hpp"
#include "core/copy.hpp"
#include "p2p/engine.hpp"
#include "p2p/posting.hpp"
#include "p2p/tags.hpp"

namespace sheaf::p2p {
namespace {

// Below, several tensors are packed: copies are cheaper than a message each.
constexpr std::int64_t worth_a_message = 1 << 20;

// One tensor's blocks on the way to their places.
class blocks {
 public:
  // Tensors of one call differ in `number`.
  blocks(posting& messages, const data_tags& tag, std::uint64_t number, const part& of, std::size_t limit)
      : messages_(messages), tag_(tag), number_(number), of_(of), limit_(limit) {}

  void receive(int rank, int world) {
    for (int step = 1; step < world; ++step) {
      const int peer = (rank + world - step) % world;
      const auto bytes = static_cast<std::size_t>(of_.at.block_bytes(peer));
      if (bytes == 0) continue;
      arrivals_.push_back({peer, in_place() ? of_.whole.slice(of_.at.block_offset(peer), bytes) : allocate(bytes), 0});
      split(arrivals_.back().block, [&](std::uint64_t tag, memory piece) {
        arrivals_.back().last = messages_.receive(peer, tag_(tag), std::move(piece));
      });
    }
  }

  void send(int rank, int world) {
    for (int step = 1; step < world; ++step) {
      split(of_.own, [&](std::uint64_t tag, memory piece) {
        messages_.send((rank + step) % world, tag_(tag), std::move(piece));
      });
    }
    place(of_.at, rank, of_.own.data, of_.whole.data);
  }

  // Blocks that arrived beside their places are copied there.
  void finish() {
    if (in_place()) return;
    for (const auto& [peer, block, last] : arrivals_) {
      const auto pieces = (block.size + limit_ - 1) / limit_;
      for (std::size_t piece = 0; piece < pieces; ++piece) messages_.wait(last - piece);
      place(of_.at, peer, block.data, of_.whole.data);
    }
  }

 private:
  struct arrival {
    int peer;
    memory block;
    std::size_t last;  // the message that completes it
  };

  bool in_place() const { return of_.at.outer == 1; }

  // Messages have an upper bound: calls piece(tag, bytes) for each piece of `whole`.
  template <class Piece>
  void split(const memory& whole, Piece&& piece) {
    auto tag = number_ << 32;
    for (std::size_t first = 0; first < whole.size; first += limit_) {
      piece(tag++, whole.slice(first, std::min(limit_, whole.size - first)));
    }
  }

  posting& messages_;
  const data_tags& tag_;
  const std::uint64_t number_;
  const part& of_;
  const std::size_t limit_;
  std::vector<arrival> arrivals_;
};

}  // namespace

// Below, the allocator's own memory is warm.
constexpr std::int64_t worth_keeping = 1 << 20;

memory engine::take_result(const call& now, const layout& at) {
  const auto bytes = is_reduction(now.head.op) ? at.block_bytes(rank()) : at.bytes();
  return bytes >= worth_keeping ? warm_->take(static_cast<std::size_t>(bytes)) : memory{};
}

void engine::all_gather(const call& now, const layout& at, memory own, memory result) {
  const bundle one(rank(), {{at, dtype::uint8, reduction::sum, std::move(result), std::move(own)}});
  auto waiting = on_the_way(now);
  gather(waiting, one, data_tags(now, at));
}

void engine::gather(patience& waiting, const bundle& all, const data_tags& tag) {
  greet(waiting);
  posting messages(*link_, waiting);
  std::vector<blocks> tensors;
  for (const auto& one : all.parts()) {
    tensors.emplace_back(messages, tag, tensors.size(), one, static_cast<std::size_t>(settings_.message_bytes));
  }
  for (auto& one : tensors) one.receive(rank(), world());
  for (auto& one : tensors) one.send(rank(), world());
  for (auto& one : tensors) one.finish();
  messages.wait_all();
  waiting.finish();
}

void engine::all_gather_coalesced(const call& now, const bundle& all) {
  const data_tags tag(now, all);
  const auto& at = all.packed();
  auto waiting = on_the_way(now);
  if (at.bytes() >= worth_a_message) return gather(waiting, all, tag);
  auto own = scratch_->take(at.sizes[rank()]);
  auto whole = scratch_->take(at.bytes());
  all.pack_own(own.data);
  gather(waiting, bundle(rank(), {{at, dtype::uint8, reduction::sum, whole, own}}), tag);
  for (int peer = 0; peer < world(); ++peer) all.unpack(peer, whole.data + at.offsets[peer]);
}

}  // namespace sheaf::p2p
