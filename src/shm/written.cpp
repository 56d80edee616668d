// SPDX-License-Identifier: MIT
#include "shm/written.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "shm/mapping.hpp"

namespace sheaf::shm {
namespace {

// As in linux/fs.h since Linux 6.7, which older systems' headers do not have.
struct page_region {
  std::uint64_t start, end, categories;
};
struct scan_argument {
  std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  std::uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long pagemap_scan = _IOWR('f', 16, scan_argument);
constexpr std::uint64_t is_file = 1 << 2, is_present = 1 << 3, is_swapped = 1 << 4;

// Of this process; reopened in a child of fork, where the old one would show the parent's.
class pagemap {
 public:
  int number() {
    const std::lock_guard lock(mutex_);
    if (!file_ || process_ != ::getpid()) {
      process_ = ::getpid();
      file_ = descriptor(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    }
    return file_.number();
  }

 private:
  std::mutex mutex_;
  descriptor file_;
  int process_ = -1;
};

pagemap& own_pagemap() {
  static auto* map = new pagemap;
  return *map;
}

void discard(std::uint64_t start, std::uint64_t end) {
  ::madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED);
}

// Nothing: the kernel has no such call.
std::optional<std::size_t> by_scan(int map, std::uint64_t start, std::uint64_t end) {
  std::array<page_region, 64> regions;
  std::size_t pages = 0;
  while (start < end) {
    scan_argument ask{.size = sizeof(ask),
                      .start = start,
                      .end = end,
                      .vec = reinterpret_cast<std::uint64_t>(regions.data()),
                      .vec_len = regions.size(),
                      .category_inverted = is_file,
                      .category_mask = is_file,
                      .category_anyof_mask = is_present | is_swapped,
                      .return_mask = is_present | is_swapped};
    const auto found = ::ioctl(map, pagemap_scan, &ask);
    if (found < 0) return std::nullopt;
    for (long i = 0; i < found; ++i) {
      discard(regions[i].start, regions[i].end);
      pages += (regions[i].end - regions[i].start) / page_bytes();
    }
    start = ask.walk_end > start ? ask.walk_end : end;
  }
  return pages;
}

// Bit 63: present, 62: swapped, 61: of a file. Nothing: it cannot be read.
std::optional<std::size_t> by_reading(int map, std::uint64_t start, std::uint64_t end) {
  std::vector<std::uint64_t> entries((end - start) / page_bytes());
  const auto bytes = static_cast<ssize_t>(entries.size() * sizeof(std::uint64_t));
  if (::pread(map, entries.data(), bytes, static_cast<off_t>(start / page_bytes() * sizeof(std::uint64_t))) != bytes) {
    return std::nullopt;
  }
  std::size_t pages = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool there = entries[i] >> 62 != 0;
    const bool of_file = entries[i] >> 61 & 1;
    if (!there || of_file) continue;
    discard(start + i * page_bytes(), start + (i + 1) * page_bytes());
    ++pages;
  }
  return pages;
}

}  // namespace

std::size_t discard_written(std::byte* data, std::size_t bytes) {
  const auto start = reinterpret_cast<std::uint64_t>(data);
  const auto end = start + up_to_page(bytes);
  const int map = own_pagemap().number();
  if (map >= 0) {
    if (const auto pages = by_scan(map, start, end)) return *pages;
    if (const auto pages = by_reading(map, start, end)) return *pages;
  }
  discard(start, end);
  return (end - start) / page_bytes();
}

}  // namespace sheaf::shm
