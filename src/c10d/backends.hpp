// SPDX-License-Identifier: MIT
// What carries a group's collectives: its own backend, and for calls that were started a second one like it, which is
// made when the first of them moves data. Backends pair calls by the order in which a process makes them, and what the
// group's thread makes must not come between the program's own.
#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>

#include "c10d/link.hpp"

namespace sheaf::c10d_engine {

class backends {
 public:
  using pointer = c10::intrusive_ptr<c10d::Backend>;

  explicit backends(std::shared_ptr<const link> group) : group_(std::move(group)) {}
  // What the second ones still do comes to its end, later.
  ~backends();

  // For tensors on such a device. Throws rank_error once the group was destroyed.
  pointer own(c10::DeviceType device) const;
  // Waits for the other ranks where it is made.
  pointer second(c10::DeviceType device);
  // What the second one was asked for is all on the current stream of the device.
  void asked(c10::Device device);
  // Why there can be no second one; empty: there can.
  std::string why_no_second(c10::DeviceType device) const;

 private:
  struct made {
    pointer backend;
    std::map<c10::DeviceIndex, c10::Event> last = {};  // by device: the end of what it was asked for
  };
  static void end(made* one, std::chrono::milliseconds timeout) noexcept;

  const std::shared_ptr<const link> group_;
  std::mutex mutex_;
  std::map<c10::DeviceType, made> seconds_;
};

// How a second backend is made of a group's own one, which is of this kind: offered when the library is loaded.
struct second_maker {
  std::function<backends::pointer(c10d::Backend& own, const c10::intrusive_ptr<c10d::Store>& store)> make;
  std::function<std::string()> why_not;  // nothing can be made; empty: it can
};
void offer_second(const std::string& kind, second_maker how);

}  // namespace sheaf::c10d_engine
