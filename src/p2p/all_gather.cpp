// SPDX-License-Identifier: MIT
// Move: every rank sends its block to every other, straight into place. W - 1 messages each way, (W - 1) · own bytes
// out and N - own bytes in for each rank; N bytes of memory along dim 0, the peers' blocks once more for other dims.
#include <algorithm>

#include "core/copy.hpp"
#include "p2p/engine.hpp"
#include "p2p/posting.hpp"
#include "p2p/tags.hpp"

namespace sheaf::p2p {
namespace {

// Messages have an upper bound: calls part(number, bytes) for each part of `whole`.
template <class Part>
void split(const memory& whole, std::size_t limit, Part&& part) {
  for (std::size_t first = 0, number = 0; first < whole.size; first += limit, ++number) {
    part(number, whole.slice(first, std::min(limit, whole.size - first)));
  }
}

}  // namespace

// Below, the allocator's own memory is warm.
constexpr std::int64_t worth_keeping = 1 << 20;

memory engine::take_result(const call& now, const layout& at) {
  const auto bytes = now.head.op == operation::reduce_scatter ? at.block_bytes(rank()) : at.bytes();
  return bytes >= worth_keeping ? warm_->take(static_cast<std::size_t>(bytes)) : memory{};
}

void engine::all_gather(const call& now, const layout& at, memory own, memory result) {
  auto waiting = on_the_way(now, at);
  greet(waiting);
  const data_tags tag(now, at);
  const auto limit = static_cast<std::size_t>(settings_.message_bytes);
  const bool in_place = at.outer == 1;
  posting messages(*link_, waiting);

  struct arrival {
    int peer;
    memory block;
    std::size_t last;  // the message that completes it
  };
  std::vector<arrival> arrivals;
  for (int step = 1; step < world(); ++step) {
    const int peer = (rank() + world() - step) % world();
    const auto bytes = static_cast<std::size_t>(at.block_bytes(peer));
    if (bytes == 0) continue;
    arrivals.push_back({peer, in_place ? result.slice(at.block_offset(peer), bytes) : allocate(bytes), 0});
    split(arrivals.back().block, limit, [&](std::size_t number, memory part) {
      arrivals.back().last = messages.receive(peer, tag(number), std::move(part));
    });
  }
  for (int step = 1; step < world(); ++step) {
    split(own, limit, [&](std::size_t number, memory part) {
      messages.send((rank() + step) % world(), tag(number), std::move(part));
    });
  }

  place(at, rank(), own.data, result.data);
  if (!in_place) {
    for (const auto& [peer, block, last] : arrivals) {
      const auto parts = (block.size + limit - 1) / limit;
      for (std::size_t part = 0; part < parts; ++part) messages.wait(last - part);
      place(at, peer, block.data, result.data);
    }
  }
  messages.wait_all();
  waiting.finish();
}

}  // namespace sheaf::p2p
