// SPDX-License-Identifier: MIT
// Fresh memory costs a page fault for each page: more, for large results, than moving their bytes.
#pragma once

#include <cstddef>

namespace sheaf {

// Asks for huge pages inside [data, data + bytes), where that pays and SHEAF_HUGE_PAGES is not 0. Never beyond it, so
// that memory does not grow.
void prefer_huge_pages(std::byte* data, std::size_t bytes);

}  // namespace sheaf
