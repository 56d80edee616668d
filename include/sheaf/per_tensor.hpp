// SPDX-License-Identifier: MIT
// An option of a call with several tensors: one value for all of them, or one for each.
#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace sheaf {

template <class Value>
class per_tensor {
 public:
  template <std::convertible_to<Value> From>
  per_tensor(From&& for_all) : values_{Value(std::forward<From>(for_all))}, is_shared_(true) {}
  per_tensor(std::initializer_list<Value> for_each) : values_(for_each) {}
  template <std::convertible_to<Value> From>
  per_tensor(const std::vector<From>& for_each) : values_(for_each.begin(), for_each.end()) {}

  // How many values there are for so many tensors: as many, or the call is refused.
  std::size_t count_for(std::size_t tensors) const { return is_shared_ ? tensors : values_.size(); }
  const Value& operator[](std::size_t tensor) const { return values_[is_shared_ ? 0 : tensor]; }

 private:
  std::vector<Value> values_;
  bool is_shared_ = false;
};

}  // namespace sheaf
