// SPDX-License-Identifier: MIT
#include "c10d/backends.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sheaf/error.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/watchdog.hpp"
#include "core/chore.hpp"
#include "core/text.hpp"
#include "core/work.hpp"

namespace sheaf::c10d_engine {
namespace {

std::map<std::string, second_maker>& makers() {
  static std::map<std::string, second_maker> all;
  return all;
}

// Backends that split off a new one without asking for a collective of their own.
backends::pointer split(c10d::Backend& own, const c10::intrusive_ptr<c10d::Store>& store) {
  std::vector<int> ranks(own.getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  return own.split(store, ranks, own.getBackendOptions());
}

[[maybe_unused]] const bool gloo_offered = (offer_second("gloo", {split, [] { return ""; }}), true);

}  // namespace

void offer_second(const std::string& kind, second_maker how) { makers()[kind] = std::move(how); }

backends::pointer backends::own(c10::DeviceType device) const { return group_->backend(device); }

std::string backends::why_no_second(c10::DeviceType device) const {
  const auto kind = group_->backend_name(device);
  const auto found = makers().find(kind);
  if (found == makers().end()) return "a second backend of kind " + kind + " cannot be made";
  return group_->group_store() ? found->second.why_not() : "the group has no store";
}

backends::pointer backends::second(c10::DeviceType device) {
  const std::lock_guard lock(mutex_);
  auto& found = seconds_[device];
  if (found.backend) return found.backend;
  if (const auto why = why_no_second(device); !why.empty()) {
    throw rank_error("another rank started this call, which this one cannot make apart from the program's own: " + why);
  }
  look_after_groups();
  const auto like = own(device);
  const auto store = group_->group_store();
  if (!store) throw rank_error("the process group was destroyed");
  const auto kind = like->getBackendName();
  const blind_wait for_the_others;
  try {
    // By a connection of its own: who waits in a store keeps others from asking it.
    const auto part = c10::make_intrusive<c10d::PrefixStore>("sheaf/started/" + kind, store)->clone();
    found.backend = makers().at(kind).make(*like, part);
  } catch (const std::exception& error) {
    throw std::runtime_error("no second " + kind + " for calls that are started: " + first_line(error));
  }
  return found.backend;
}

void backends::asked(c10::Device device) {
  if (device.is_cpu()) return;
  const std::lock_guard lock(mutex_);
  auto& last = seconds_[device.type()].last.try_emplace(device.index(), device.type()).first->second;
  last.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

backends::~backends() {
  for (auto& [device, one] : seconds_) {
    if (!one.backend) continue;
    auto* const last = new made(std::move(one));
    try {
      std::thread(end, last, group_->timeout()).detach();
    } catch (const std::exception&) {
      // Without a thread it stays for good.
    }
  }
}

// Nobody waits here: to end a backend takes its time, and results that streams have waited for are yet to be made.
// Peers may need what it still sends, so it is shut down; one that has not ended in the time that calls have is
// aborted.
void backends::end(made* one, std::chrono::milliseconds timeout) noexcept {
  try {
    c10::OptionalDeviceGuard there;  // else the questions would set up the first device for this process
    if (!one->last.empty()) there.reset_device(one->last.begin()->second.device());
    if (const auto* work = find_work(device_type::cuda); work && !one->last.empty()) work->ignore_captures();
    const auto is_over = [&] {
      return std::ranges::all_of(one->last, [](const auto& item) { return item.second.query(); });
    };
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!is_over() && std::chrono::steady_clock::now() < until) {
      if (is_ending()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    is_over() ? one->backend->shutdown() : one->backend->abort();
    if (is_ending()) return;
    delete one;
  } catch (const std::exception&) {
    // The device is gone, or the process ends: all must stay as it is.
  }
}

}  // namespace sheaf::c10d_engine
