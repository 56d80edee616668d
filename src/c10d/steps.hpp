// SPDX-License-Identifier: MIT
// The collectives that one call asks of a group's backend, on bytes that lie on one device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <vector>

#include "c10d/backends.hpp"
#include "core/engine.hpp"
#include "core/work.hpp"

namespace sheaf::c10d_engine {

using splits = std::vector<std::int64_t>;  // bytes, by rank

at::Tensor as_tensor(const memory& bytes);
std::byte* bytes_of(const at::Tensor& x);

class steps {
 public:
  // `on` lies on the device in question.
  steps(backends& of, const call& now, const memory& on);
  ~steps();
  steps(const steps&) = delete;
  steps& operator=(const steps&) = delete;

  const local_work& local() const { return work_; }
  at::Tensor scratch(std::int64_t bytes) const;

  void gather_even(at::Tensor block, at::Tensor whole);
  // Each rank's block to its part on all others; the own one stays where it is. One operation, where the backend can
  // make it one: from its rank to every other, or round by round.
  void gather_directly(const at::Tensor& block, std::vector<at::Tensor> parts);
  void gather_grouped(at::Tensor block, std::vector<at::Tensor> parts);
  void all_to_all(at::Tensor from, splits sent, at::Tensor to, splits received);

 private:
  template <class Options>
  Options with() const;
  template <class Start>
  void finish(Start&& start);
  void broadcast_each(const std::vector<at::Tensor>& parts);

  backends& of_;
  const call& now_;
  const c10::Device device_;
  const c10::DeviceGuard guard_;
  const local_work& work_;
  const backends::pointer backend_;
};

}  // namespace sheaf::c10d_engine
