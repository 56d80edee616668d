// SPDX-License-Identifier: MIT
// Pages of a copied view that this process has written are its own for ever, and would hide what comes into the file
// later: before a segment is used again they must go.
#pragma once

#include <cstddef>
#include <optional>

namespace sheaf::shm {

// Lets the kernel mark what is written in a view, as long as it is mapped: to look for marks takes a twentieth of the
// time that a look at each page takes. False where it does not (before Linux 6.7, or where userfaultfd is forbidden).
class write_marks {
 public:
  write_marks() = default;
  write_marks(std::byte* view, std::size_t bytes);
  explicit operator bool() const { return works_; }

 private:
  bool works_ = false;
};

// Gives the pages back that were written in [data, data + bytes), and returns how many there were. Where the kernel
// does not tell which (before Linux 6.7, and with no access to pagemap), it gives all back and returns all. Nothing:
// some could not be given back.
std::optional<std::size_t> discard_written(std::byte* data, std::size_t bytes, const write_marks& marks = {});

}  // namespace sheaf::shm
