// SPDX-License-Identifier: MIT
// From the streams of a program to one of the group's thread, and back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <optional>
#include <vector>

namespace sheaf::async {

using tensor_list = std::vector<at::Tensor>;

// The way of a call by a device: behind what its stream had to do where the call was started, on a stream of the
// group's thread, and before what comes on the streams where it is waited for. Of the CPU's nothing is to be told.
class crossing {
 public:
  // On the thread that starts the call.
  explicit crossing(c10::Device device);
  // On the group's thread. Tensors that it is given stay as they are until the device is done with them.
  tensor_list run(const tensor_list& given, const std::function<tensor_list()>& body);
  // It ends on the current stream; part of run().
  void end();
  // On a thread that waits: the current stream does, not the thread.
  void arrive(const tensor_list& results) const;
  bool is_over() const;

 private:
  const c10::Device device_;
  std::optional<c10::Event> ready_;
  std::optional<c10::Event> over_;
  std::optional<c10::Stream> ended_on_;
  bool is_captured_ = false;
};

}  // namespace sheaf::async
