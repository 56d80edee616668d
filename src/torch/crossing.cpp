// SPDX-License-Identifier: MIT
#include "torch/crossing.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/work.hpp"
#include "torch/device.hpp"

namespace sheaf::async {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// The streams of a thread that carries calls on. They go from thread to thread, since the allocator keeps memory for
// each stream that had some. NCCL keeps the order of one communicator's calls, should its next one come on another
// stream.
class side_streams {
 public:
  ~side_streams() {
    const std::lock_guard lock(left().mutex);
    for (const auto& [device, stream] : mine_) {
      try {
        if (stream.query()) left().streams.push_back(stream);  // nobody else's call need wait for what is under way
      } catch (const std::exception&) {
        // The device is gone.
      }
    }
  }

  static c10::Stream of_this_thread(c10::Device device) {
    thread_local side_streams all;
    if (const auto found = all.mine_.find(device); found != all.mine_.end()) return found->second;
    // What this thread asks of the device, memory and how far it is, must not end a capture in another one.
    if (const auto* work = find_work(device_from(device.type()))) work->ignore_captures();
    return all.mine_.emplace(device, take(device)).first->second;
  }

 private:
  struct stock {
    std::mutex mutex;
    std::vector<c10::Stream> streams;
  };
  // Never destroyed: threads may end while the process does.
  static stock& left() {
    static auto* all = new stock;
    return *all;
  }

  static c10::Stream take(c10::Device device) {
    const std::lock_guard lock(left().mutex);
    auto& streams = left().streams;
    const auto found = std::ranges::find(streams, device, &c10::Stream::device);
    // Of those that are not, which torch hands out in turn, programs and backends have theirs: what is on one
    // stream runs in order, and ranks that mix two communicators there would wait for each other.
    constexpr bool urgent = true;
    if (found == streams.end()) {
      return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, urgent);
    }
    const auto stream = *found;
    streams.erase(found);
    return stream;
  }

  std::unordered_map<c10::Device, c10::Stream> mine_;
};

void keep_for(c10::Stream stream, const tensor_list& tensors) {
  for (const auto& one : tensors) {
    if (one.device() == stream.device()) one.record_stream(stream);
  }
}

}  // namespace

crossing::crossing(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  ready_.emplace(device.type());
  ready_->record(current_stream(device));
}

tensor_list crossing::run(const tensor_list& given, const std::function<tensor_list()>& body) {
  if (!ready_) return body();
  const auto stream = side_streams::of_this_thread(device_);
  const c10::StreamGuard on(stream);
  ready_->block(stream);
  keep_for(stream, given);
  auto results = body();
  end();
  return results;
}

void crossing::end() {
  if (!ready_) return;
  const c10::DeviceGuard there(device_);
  is_captured_ = is_capturing(device_);
  over_.emplace(device_.type());
  ended_on_ = current_stream(device_);
  over_->record(*ended_on_);
}

void crossing::arrive(const tensor_list& results) const {
  if (!over_) return;
  const auto here = current_stream(device_);
  if (here == *ended_on_) return;
  over_->block(here);
  keep_for(here, results);
}

// Of what a graph has captured nothing runs, and a question about it ends the capture.
bool crossing::is_over() const { return !over_ || is_captured_ || over_->query(); }

}  // namespace sheaf::async
