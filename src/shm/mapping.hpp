// SPDX-License-Identifier: MIT
// A sealed file in memory, and views of it that unmap themselves.
#pragma once

#include <cstddef>
#include <string>

#include "shm/descriptor.hpp"

namespace sheaf::shm {

// A system call failed: what was tried, and the system's own words.
[[noreturn]] void throw_system_error(const std::string& tried);

// Zeros, sparse, of a size that nobody can change.
descriptor make_memory_file(std::size_t bytes);
std::size_t file_bytes(const descriptor& file);

// Of the system.
std::size_t page_bytes();
std::size_t up_to_page(std::size_t bytes);

class mapping {
 public:
  // `shared`: writes go to the file. `copied`: they stay with this process, page by page.
  enum class kind { shared, copied };
  mapping() = default;
  mapping(const descriptor& file, std::size_t first, std::size_t bytes, kind how);
  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&& other) noexcept;
  ~mapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sheaf::shm
