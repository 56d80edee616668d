// SPDX-License-Identifier: MIT
// Pages of a copied view that this process has written are its own for ever, and would hide what comes into the file
// later: before a segment is used again they must go.
#pragma once

#include <cstddef>

#include "shm/descriptor.hpp"

namespace sheaf::shm {

// Lets the kernel mark what is written in a view, as long as this lives: to look for marks takes a twentieth of the
// time that a look at each page takes. False where it does not (before Linux 6.7, or where userfaultfd is forbidden).
class write_marks {
 public:
  write_marks() = default;
  write_marks(std::byte* view, std::size_t bytes);
  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  descriptor file_;
};

// Gives the pages back that were written in [data, data + bytes), and returns how many there were. Where the kernel
// does not tell which (before Linux 6.7, and with no access to pagemap), it gives all back and returns all.
std::size_t discard_written(std::byte* data, std::size_t bytes, const write_marks& marks = {});

}  // namespace sheaf::shm
