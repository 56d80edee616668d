// SPDX-License-Identifier: MIT
// Pages of a copied view that this process has written are its own for ever, and would hide what comes into the file
// later: before a segment is used again they must go.
#pragma once

#include <cstddef>

namespace sheaf::shm {

// Gives the pages back that were written in [data, data + bytes), and returns how many there were. Where the kernel
// does not tell which (before Linux 6.7, and with no access to pagemap), it gives all back and returns all.
std::size_t discard_written(std::byte* data, std::size_t bytes);

}  // namespace sheaf::shm
