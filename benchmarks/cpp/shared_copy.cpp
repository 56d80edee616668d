// SPDX-License-Identifier: MIT
#include "shared_copy.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <stdexcept>

#include "shm/descriptor.hpp"

namespace bench {
namespace {

// Rank 0's, without a name in a file system; the others open it while rank 0 has it open.
sheaf::shm::mapping map_of_all(ranks& all, std::size_t bytes) {
  const sheaf::shm::descriptor made(all.rank() == 0 ? ::memfd_create("sheaf-bench", MFD_CLOEXEC) : -1);
  if (made && ::ftruncate(made.number(), static_cast<off_t>(bytes)) != 0)
    throw std::runtime_error("no memory to share");
  const auto process = all.agree(::getpid()), number = all.agree(made.number());
  const auto path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  const sheaf::shm::descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw std::runtime_error("cannot open " + path);
  all.meet();
  return {file, 0, bytes, sheaf::shm::mapping::kind::shared};
}

}  // namespace

shared_copy::shared_copy(const setting& of, const sheaf::memory& block)
    : candidate("shared copy"),
      all_(of.all),
      bytes_(static_cast<std::size_t>(of.at.bytes())),
      whole_(map_of_all(of.all, bytes_)),
      own_(whole_.data() + of.at.block_offset(of.all.rank())),
      block_(block) {
  std::memset(whole_.data(), 1, bytes_);  // warm, on every rank
}

void shared_copy::call(int) {
  std::memcpy(own_, block_.data, block_.size);
  all_.meet();
}

}  // namespace bench
