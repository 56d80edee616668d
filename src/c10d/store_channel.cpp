// SPDX-License-Identifier: MIT
#include "c10d/store_channel.hpp"

#include <algorithm>
#include <cstring>
#include <sheaf/error.hpp>
#include <thread>

#include "core/text.hpp"

namespace sheaf::c10d_engine {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

class sent final : public p2p::transfer {
 public:
  bool wait(clock::time_point) override { return true; }
};

class arriving final : public p2p::transfer {
 public:
  arriving(std::string key, memory bytes, const group_ref& group)
      : key_(std::move(key)), bytes_(std::move(bytes)), group_(group) {}

  // Asks again and again: a wait of the store's own would keep its other users out.
  bool wait(clock::time_point until) override {
    for (auto pause = 20us; !is_done_ && !take(); pause = std::min<std::chrono::microseconds>(2 * pause, 1ms)) {
      if (clock::now() >= until) return false;
      std::this_thread::sleep_for(pause);
    }
    return true;
  }

 private:
  bool take() {
    const auto group = group_.lock();
    if (!group) throw rank_error("the process group was destroyed");
    try {
      const auto store = group->getStore();
      if (!store->check({key_})) return false;
      const auto message = store->get(key_);
      std::memcpy(bytes_.data, message.data(), std::min(message.size(), bytes_.size));
      store->deleteKey(key_);
    } catch (const std::exception& error) {
      throw rank_error("the group's store does not answer: " + first_line(error));
    }
    return is_done_ = true;
  }

  const std::string key_;
  const memory bytes_;
  const group_ref group_;
  bool is_done_ = false;
};

}  // namespace

std::string store_channel::next_key(counters& count, int from, int to, int peer, std::uint32_t tag) {
  const std::lock_guard lock(mutex_);
  return "sheaf/message/" + std::to_string(from) + "/" + std::to_string(to) + "/" + std::to_string(tag) + "/" +
         std::to_string(++count[{peer, tag}]);
}

std::unique_ptr<p2p::transfer> store_channel::send(int peer, std::uint32_t tag, memory bytes) {
  const auto key = next_key(sent_, rank(), peer, peer, tag);
  try {
    const auto store = group_store();
    if (!store) throw rank_error("the process group was destroyed, or has no store");
    const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data);
    store->set(key, std::vector<std::uint8_t>(data, data + bytes.size));
  } catch (const std::exception& error) {
    throw rank_error("the group's store does not answer: " + first_line(error));
  }
  return std::make_unique<sent>();
}

std::unique_ptr<p2p::transfer> store_channel::receive(int peer, std::uint32_t tag, memory bytes) {
  return std::make_unique<arriving>(next_key(received_, peer, rank(), peer, tag), std::move(bytes), group());
}

}  // namespace sheaf::c10d_engine
