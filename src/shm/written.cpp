// SPDX-License-Identifier: MIT
#include "shm/written.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
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
constexpr std::uint64_t is_written = 1 << 1, is_file = 1 << 2, is_present = 1 << 3, is_swapped = 1 << 4;
constexpr std::uint64_t mark_found_anew = 1 << 0, only_where_marked = 1 << 1;
// As in linux/userfaultfd.h of the same time: faults of the kernel's own are not asked for, nobody is told of a write,
// and what is not there yet can be marked.
constexpr int user_faults_only = 1;
constexpr std::uint64_t marks_alone = (1 << 15) | (1 << 13) | (1 << 12);

// A file that shows this process, never closed; opened anew in a child of fork, where the old one would show the
// parent, and where its number may be another file's by now.
class own_file {
 public:
  explicit own_file(descriptor (*open)()) : open_(open) {}

  int number() {
    auto now = known_.load();
    for (;;) {
      if (now.process == ::getpid()) return now.number;
      auto opened = open_();
      if (!opened) return -1;
      if (known_.compare_exchange_strong(now, {::getpid(), opened.number()})) return opened.release();
    }
  }

 private:
  struct known {
    int process = -1;
    int number = -1;
  };
  descriptor (*const open_)();
  std::atomic<known> known_{known{}};
};

own_file& pagemap() {
  static auto* map = new own_file([] { return descriptor(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)); });
  return *map;
}

// What sets marks; memory that is unmapped leaves it.
own_file& marker() {
  static auto* file = new own_file([] {
    descriptor made(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | user_faults_only)));
    uffdio_api ask{.api = UFFD_API, .features = marks_alone, .ioctls = 0};
    if (made && ::ioctl(made.number(), UFFDIO_API, &ask) != 0) made = {};
    return made;
  });
  return *file;
}

// False: it cannot be given back.
bool discard(std::uint64_t start, std::uint64_t end) {
  constexpr int also_locked = 24;  // MADV_DONTNEED_LOCKED, Linux 5.18
  auto* const first = reinterpret_cast<void*>(start);
  return ::madvise(first, end - start, also_locked) == 0 || ::madvise(first, end - start, MADV_DONTNEED) == 0;
}

// How much went, and whether all of it did.
struct discarded {
  std::size_t pages = 0;
  bool all = true;

  void add(std::uint64_t start, std::uint64_t end) {
    pages += (end - start) / page_bytes();
    all = discard(start, end) && all;
  }
  std::optional<std::size_t> result() const { return all ? std::optional(pages) : std::nullopt; }
};

// body(start, end) for all that the kernel finds there. False: it has no such call, or not for these pages.
template <class Body>
bool scan(int map, scan_argument ask, Body&& body) {
  std::array<page_region, 64> regions;
  ask.size = sizeof(ask);
  ask.vec = reinterpret_cast<std::uint64_t>(regions.data());
  ask.vec_len = regions.size();
  while (ask.start < ask.end) {
    const auto found = ::ioctl(map, pagemap_scan, &ask);
    if (found < 0) return false;
    for (long i = 0; i < found; ++i) body(regions[i].start, regions[i].end);
    ask.start = ask.walk_end > ask.start ? ask.walk_end : ask.end;
  }
  return true;
}

// Each page's kind is looked at; `also` is what else those are that go.
std::optional<discarded> by_scan(int map, std::uint64_t start, std::uint64_t end, std::uint64_t also = 0) {
  discarded gone;
  const bool done = scan(map,
                         {.start = start,
                          .end = end,
                          .category_inverted = is_file,
                          .category_mask = is_file | also,
                          .category_anyof_mask = is_present | is_swapped,
                          .return_mask = is_present | is_swapped},
                         [&](std::uint64_t first, std::uint64_t last) { gone.add(first, last); });
  return done ? std::optional(gone) : std::nullopt;
}

// What has no mark is new or was written. Of that alone each page is looked at, and then all get marks, which they keep
// when they come anew.
std::optional<discarded> by_marks(int map, std::uint64_t start, std::uint64_t end) {
  discarded gone;
  bool known = true, marked = true;
  // That it asks for more than marks keeps Linux 6.7 and 6.8 from taking swapped pages for marked ones.
  const scan_argument unmarked{.flags = only_where_marked,
                               .start = start,
                               .end = end,
                               .category_mask = is_written,
                               .return_mask = is_written | is_present | is_swapped};
  const bool done = scan(map, unmarked, [&](std::uint64_t first, std::uint64_t last) {
    const auto found = by_scan(map, first, last, is_written);
    marked = false;
    known = known && found;
    gone.pages += found ? found->pages : 0;
    gone.all = gone.all && (!found || found->all);
  });
  if (!done || !known) return std::nullopt;
  if (marked || !gone.all) return gone;
  const scan_argument mark{.flags = only_where_marked | mark_found_anew,
                           .start = start,
                           .end = end,
                           .category_mask = is_written,
                           .return_mask = is_written};
  return scan(map, mark, [](std::uint64_t, std::uint64_t) {}) ? std::optional(gone) : std::nullopt;
}

// Bit 63: present, 62: swapped, 61: of a file. Nothing: it cannot be read.
std::optional<discarded> by_reading(int map, std::uint64_t start, std::uint64_t end) {
  std::vector<std::uint64_t> entries((end - start) / page_bytes());
  const auto bytes = static_cast<ssize_t>(entries.size() * sizeof(std::uint64_t));
  if (::pread(map, entries.data(), bytes, static_cast<off_t>(start / page_bytes() * sizeof(std::uint64_t))) != bytes) {
    return std::nullopt;
  }
  discarded gone;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool there = entries[i] >> 62 != 0;
    const bool of_file = entries[i] >> 61 & 1;
    if (there && !of_file) gone.add(start + i * page_bytes(), start + (i + 1) * page_bytes());
  }
  return gone;
}

}  // namespace

write_marks::write_marks(std::byte* view, std::size_t bytes) {
  uffdio_register where{};
  where.range = {reinterpret_cast<std::uint64_t>(view), bytes};
  where.mode = UFFDIO_REGISTER_MODE_WP;
  const int file = marker().number();
  works_ = file >= 0 && ::ioctl(file, UFFDIO_REGISTER, &where) == 0;
}

std::optional<std::size_t> discard_written(std::byte* data, std::size_t bytes, const write_marks& marks) {
  const auto start = reinterpret_cast<std::uint64_t>(data);
  const auto end = start + up_to_page(bytes);
  const int map = pagemap().number();
  if (map >= 0) {
    if (const auto gone = marks ? by_marks(map, start, end) : std::nullopt) return gone->result();
    if (const auto gone = by_scan(map, start, end)) return gone->result();
    if (const auto gone = by_reading(map, start, end)) return gone->result();
  }
  discarded gone;
  if (start < end) gone.add(start, end);
  return gone.result();
}

}  // namespace sheaf::shm
