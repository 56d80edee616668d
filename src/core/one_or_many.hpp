// SPDX-License-Identifier: MIT
// A list that is mostly of one: that one needs no memory of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

namespace sheaf {

template <class Item>
class one_or_many {
 public:
  one_or_many() = default;
  one_or_many(std::initializer_list<Item> all) {
    for (const auto& one : all) push_back(one);
  }

  void reserve(std::size_t count) {
    if (count > 1) many_.reserve(count);
  }
  void push_back(const Item& next) {
    if (size_ == 0) {
      one_ = next;
    } else {
      if (size_ == 1) many_.assign(1, one_);
      many_.push_back(next);
    }
    ++size_;
  }
  // To no fewer than there are.
  void grow(std::size_t count, const Item& with = {}) {
    while (size_ < count) push_back(with);
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Item* begin() { return size_ > 1 ? many_.data() : &one_; }
  const Item* begin() const { return size_ > 1 ? many_.data() : &one_; }
  Item* end() { return begin() + size_; }
  const Item* end() const { return begin() + size_; }
  Item& operator[](std::size_t i) { return begin()[i]; }
  const Item& operator[](std::size_t i) const { return begin()[i]; }
  Item& front() { return *begin(); }
  const Item& front() const { return *begin(); }

  friend bool operator==(const one_or_many& a, const one_or_many& b) { return std::ranges::equal(a, b); }

 private:
  std::size_t size_ = 0;
  Item one_{};
  std::vector<Item> many_;
};

}  // namespace sheaf
