// SPDX-License-Identifier: MIT
// Work on large memory is shared out over the rank's intra-op threads. Whoever has threads installs them; without, the
// caller's thread does it all.
#pragma once

#include <cstdint>
#include <memory>
#include <sheaf/export.hpp>
#include <type_traits>

namespace sheaf {

using parallel_body = void (*)(void* context, std::int64_t part);

// The number of threads, and a function that calls body(context, part) for every part of [0, parts), and returns when
// all are done. Nulls take them back.
struct parallel_threads {
  int (*count)() = nullptr;
  void (*run)(std::int64_t parts, void* context, parallel_body body) = nullptr;
};
SHEAF_API void use_threads(parallel_threads with);

int thread_count();
void run_parallel(std::int64_t parts, void* context, parallel_body body);

// body(part) for every part of [0, parts), in any order, on the rank's threads.
template <class Body>
void parallel(std::int64_t parts, Body&& body) {
  using callable = std::remove_reference_t<Body>;
  run_parallel(parts, const_cast<void*>(static_cast<const void*>(std::addressof(body))),
               [](void* context, std::int64_t part) { (*static_cast<callable*>(context))(part); });
}

}  // namespace sheaf
