// SPDX-License-Identifier: MIT
#include "p2p/mail.hpp"

#include <cstring>
#include <sheaf/error.hpp>
#include <utility>

#include "p2p/tags.hpp"

namespace sheaf::p2p {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

void mail::stand_ready(int peer) {
  auto& [space, arriving, full, front, taken] = boxes_[peer];
  if (arriving) return;
  if (!space.data) space = allocate(frame_capacity);
  arriving = link_.receive(peer, frame_tag, space);
}

void mail::send(posting& messages, const header& head, std::span<const std::byte> payload) {
  const auto bytes = encode(head, payload);
  const auto own = allocate(bytes.size());
  std::memcpy(own.data, bytes.data(), bytes.size());
  const int world = link_.world();
  for (int step = 1; step < world; ++step) messages.send((link_.rank() + step) % world, frame_tag, own);
}

bool mail::arrives(int peer, clock::time_point until) {
  auto& [space, arriving, full, front, taken] = boxes_[peer];
  if (full) return true;
  stand_ready(peer);
  if (!arriving->wait(until)) return false;
  arriving.reset();
  front = decode({space.data, space.size});
  if (front) front = with_own_payload(std::move(*front));  // the next frame comes to the same place
  full = true;
  stand_ready(peer);
  return true;
}

bool mail::has(int peer, std::uint64_t sequence, clock::time_point until) {
  auto& box = boxes_[peer];
  while (arrives(peer, until)) {
    if (!box.front || box.front->head.sequence >= sequence) return true;
    box.full = false;
  }
  return false;
}

bool mail::holds(int peer, std::uint64_t sequence) {
  const auto& box = boxes_[peer];
  return arrives(peer, clock::now() + 5ms) && box.front && box.front->head.sequence == sequence;
}

std::optional<frame> mail::receive(int peer, std::uint64_t sequence, patience& waiting) {
  waiting.wait(
      peer, [&](clock::time_point until) { return has(peer, sequence, until); },
      [&] { return missing_peers(sequence); });
  auto& [space, arriving, full, front, taken] = boxes_[peer];
  if (front && front->head.sequence > sequence) {
    waiting.passed(peer, front->head);
  }
  full = false;
  taken = sequence;
  return std::exchange(front, std::nullopt);
}

std::vector<int> mail::missing_peers(std::uint64_t sequence) {
  std::vector<int> missing;
  for (int peer = 0; peer < link_.world(); ++peer) {
    if (peer == link_.rank() || boxes_[peer].taken == sequence) continue;
    try {
      if (!has(peer, sequence, clock::now() + 5ms)) missing.push_back(peer);
    } catch (const rank_error&) {
      missing.push_back(peer);
    }
  }
  return missing;
}

}  // namespace sheaf::p2p
