// SPDX-License-Identifier: MIT
#include "core/pages.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace sheaf {
namespace {

constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;
constexpr std::size_t worth_it = std::size_t{4} << 20;

bool is_wanted() {
  static const bool wanted = [] {
    const char* value = std::getenv("SHEAF_HUGE_PAGES");
    return !value || std::string_view(value) != "0";
  }();
  return wanted;
}

}  // namespace

void prefer_huge_pages(std::byte* data, std::size_t bytes) {
  if (bytes < worth_it || !is_wanted()) return;
  const auto first = (reinterpret_cast<std::uintptr_t>(data) + huge_page - 1) / huge_page * huge_page;
  const auto last = (reinterpret_cast<std::uintptr_t>(data) + bytes) / huge_page * huge_page;
  // A hint: where the kernel has none to give, small pages do.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace sheaf
