// SPDX-License-Identifier: MIT
// A call that was started and is carried on while this rank does something else.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <sheaf/export.hpp>
#include <utility>
#include <vector>

namespace sheaf {

// What all handles are, whatever their call returns.
class SHEAF_API call_under_way {
 public:
  virtual ~call_under_way() = default;
  // Its tensors; again and again the same. Throws what the call would have thrown.
  virtual std::vector<at::Tensor> wait() = 0;
  virtual bool done() const = 0;
};

// How a result is made of a call's tensors: an overload a type of result.
inline void unpack(std::vector<at::Tensor> from, at::Tensor& result) { result = std::move(from[0]); }
inline void unpack(std::vector<at::Tensor> from, std::vector<at::Tensor>& result) { result = std::move(from); }

// Copies are the same call. One that is dropped without wait() goes on, since the other ranks need it; what was handed
// to it must not be written before wait() has returned or done() is true.
template <class Result>
class handle {
 public:
  explicit handle(std::shared_ptr<call_under_way> call) : call_(std::move(call)) {}

  // What the call would have returned.
  Result wait() const {
    Result result;
    unpack(call_->wait(), result);
    return result;
  }
  // Whether wait() would return, or throw, at once; of a device's tensors, whether the device is done, too.
  bool done() const { return call_->done(); }

 private:
  std::shared_ptr<call_under_way> call_;
};

}  // namespace sheaf
