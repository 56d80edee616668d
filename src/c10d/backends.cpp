// SPDX-License-Identifier: MIT
#include "c10d/backends.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sheaf/error.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/watchdog.hpp"

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
  look_after_groups();
  const auto like = own(device);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("sheaf/started", group_->group_store());
  try {
    // By a connection of its own: who waits in a store keeps others from asking it.
    found.backend = makers().at(like->getBackendName()).make(*like, store->clone());
  } catch (const c10::Error& error) {
    throw rank_error("no second backend for calls that are started: " + std::string(error.what_without_backtrace()));
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
    try {
      end(std::move(one));
    } catch (const std::exception&) {
      // The device is gone, or the process ends.
    }
  }
}

// Nobody need wait for a device that is not done: results that were waited for by its streams are yet to be read there.
void backends::end(made one) {
  const auto is_over = [](const made& of) {
    return std::ranges::all_of(of.last, [](const auto& item) { return item.second.query(); });
  };
  if (is_over(one)) return one.backend->abort();
  std::thread([is_over, one = std::make_shared<made>(std::move(one))] {
    try {
      while (!is_over(*one)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      one->backend->abort();
    } catch (const std::exception&) {
      // The process ends.
    }
  }).detach();
}

}  // namespace sheaf::c10d_engine
