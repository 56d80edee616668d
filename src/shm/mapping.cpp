// SPDX-License-Identifier: MIT
#include "shm/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace sheaf::shm {

void throw_system_error(const std::string& tried) {
  const int code = errno;
  throw std::runtime_error(tried + ": " + std::strerror(code));
}

descriptor make_memory_file(std::size_t bytes) {
  descriptor file(::memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_system_error("memfd_create");
  if (::ftruncate(file.number(), static_cast<off_t>(bytes)) != 0) throw_system_error("ftruncate of a memfd");
  if (::fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system_error("sealing a memfd");
  }
  return file;
}

std::size_t file_bytes(const descriptor& file) {
  struct stat about{};
  if (::fstat(file.number(), &about) != 0) throw_system_error("fstat of a memfd");
  return static_cast<std::size_t>(about.st_size);
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t up_to_page(std::size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

mapping::mapping(const descriptor& file, std::size_t first, std::size_t bytes, kind how) : size_(bytes) {
  // Most of it is never touched, so none of it is reserved.
  const int flags = (how == kind::shared ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file.number(), static_cast<off_t>(first));
  if (data == MAP_FAILED) throw_system_error("mapping " + std::to_string(bytes >> 20) + " MiB");
  data_ = static_cast<std::byte*>(data);
  // A child of fork has no part in the group. What it inherits as results are its own views.
  if (how == kind::shared) ::madvise(data, bytes, MADV_DONTFORK);
}

mapping::mapping(mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

mapping& mapping::operator=(mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

mapping::~mapping() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace sheaf::shm
