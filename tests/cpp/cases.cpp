// SPDX-License-Identifier: MIT
// All cases in one list, and their entry points for a process that is one rank and loads this library.
#include "cpp/cases.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

// Runs `body`, writes what it returns or throws to `text`, and says whether it returned.
template <class Body>
int answer(char* text, std::size_t room, Body&& body) {
  std::string said;
  int failed = 0;
  try {
    said = body();
  } catch (const std::exception& error) {
    said = error.what();
    failed = 1;
  }
  const auto length = std::min(said.size(), room - 1);
  std::memcpy(text, said.data(), length);
  text[length] = '\0';
  return failed;
}

case_list collected() {
  case_list all;
  for (const auto& part : {all_gather_cases(), reduce_scatter_cases(), gather_sizes_cases(), coalesced_cases(),
                           group_cases(), gradient_cases(), second_derivative_cases(), dtype_cases(), random_cases(),
                           disagreement_cases(), refusal_cases(), deadline_cases(), nn_cases(), compat_cases(),
                           async_cases(), async_coalesced_cases(), layout_cases(), valid_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace

const case_list& all_cases() {
  static const auto all = collected();
  return all;
}

}  // namespace sheaf::test

// Null after the last one.
extern "C" SHEAF_API const char* sheaf_case_name(int index) {
  const auto& all = sheaf::test::all_cases();
  return index < static_cast<int>(all.size()) ? all[index].name : nullptr;
}

// Cases that run from now on bring tensors that lie there: "cuda".
extern "C" SHEAF_API void sheaf_cases_on(const char* device) { sheaf::test::device() = c10::Device(device); }

// 0: it passed. 1: `text` says what went wrong.
extern "C" SHEAF_API int sheaf_run_case(const char* name, const char* group, char* text, std::size_t room) {
  return sheaf::test::answer(text, room, [&]() -> std::string {
    for (const auto& one : sheaf::test::all_cases()) {
      if (std::strcmp(one.name, name) == 0) {
        one.body(sheaf::group::named(group));
        return "";
      }
    }
    throw std::invalid_argument("there is no case " + std::string(name));
  });
}

// 0: `text` is the digest of the sums on this group.
extern "C" SHEAF_API int sheaf_digest(const char* group, char* text, std::size_t room) {
  return sheaf::test::answer(text, room, [&] { return sheaf::test::digest_of_sums(sheaf::group::named(group)); });
}

// 0: `text` is the digest of the sums on a group of `world` threads.
extern "C" SHEAF_API int sheaf_digest_of_threads(int world, char* text, std::size_t room) {
  return sheaf::test::answer(text, room, [&] {
    std::vector<std::string> digests(world);
    sheaf::spawn(world, [&](const sheaf::group& me) { digests[me.rank()] = sheaf::test::digest_of_sums(me); });
    return digests.front();
  });
}
