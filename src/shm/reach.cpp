// SPDX-License-Identifier: MIT
#include "shm/reach.hpp"

#include <limits.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "core/copy.hpp"
#include "core/interval.hpp"

namespace sheaf::shm {
namespace {

// Reads scattered pieces of one process into one buffer, as many at a time as the system takes.
class reading {
 public:
  reading(int process, std::byte* to) : process_(process), to_(to) {}

  int add(std::uint64_t from, std::size_t bytes) {
    pieces_[count_++] = {reinterpret_cast<void*>(from), bytes};
    bytes_ += bytes;
    return count_ == pieces_.size() ? flush() : 0;
  }
  int flush() {
    if (count_ == 0) return 0;
    const iovec into{to_, bytes_};
    const auto got = ::process_vm_readv(process_, &into, 1, pieces_.data(), count_, 0);
    if (got < 0) return errno;
    if (static_cast<std::size_t>(got) != bytes_) return EFAULT;
    to_ += bytes_;
    bytes_ = count_ = 0;
    return 0;
  }

 private:
  const int process_;
  std::byte* to_;
  std::array<iovec, 256> pieces_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};
static_assert(IOV_MAX >= 256);

}  // namespace

bool can_reach(const board& of) {
  if (of.process == 0) return true;
  std::uint64_t there = 0;
  reading one(of.process, reinterpret_cast<std::byte*>(&there));
  return one.add(of.self + offsetof(board, self), sizeof there) == 0 && one.flush() == 0 && there == of.self;
}

int reach(const board& of, const layout& at, int block, std::int64_t first, std::int64_t count, std::byte* packed) {
  const auto whole = of.shown.load(std::memory_order_relaxed);
  if (of.process == 0) {
    pack(at, block, reinterpret_cast<const std::byte*>(whole), first, count, packed);
    return 0;
  }
  reading all(of.process, packed);
  int error = 0;
  for_interval(at, block, first, count, [&](std::int64_t from, std::int64_t, std::int64_t bytes, std::int64_t chunks) {
    for (std::int64_t i = 0; i < chunks && error == 0; ++i) error = all.add(whole + from + i * at.chunk_bytes(), bytes);
  });
  return error != 0 ? error : all.flush();
}

}  // namespace sheaf::shm
