// SPDX-License-Identifier: MIT
#include "shm/life.hpp"

#include <fcntl.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "shm/mapping.hpp"

namespace sheaf::shm {
namespace {

// The kernel's PF_EXITING, PF_DUMPCORE and PF_SIGNALED: it dies, though its memory may take seconds to go.
constexpr unsigned long dying = 0x004 | 0x200 | 0x400;

}  // namespace

life::life(int process)
    : process_(process), stat_(::open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!stat_) throw_system_error("looking at process " + std::to_string(process));
}

std::optional<life::state> life::read() const {
  std::array<char, 1024> text{};
  const auto got = ::pread(stat_.number(), text.data(), text.size() - 1, 0);
  if (got <= 0) return std::nullopt;
  // pid (name) state ppid pgrp session tty tpgid flags …; the name may hold anything.
  const auto name_end = std::string_view(text.data(), got).rfind(')');
  state now{};
  if (name_end == std::string_view::npos ||
      std::sscanf(text.data() + name_end + 1, " %c %*d %*d %*d %*d %*d %lu", &now.letter, &now.flags) != 2) {
    return std::nullopt;
  }
  return now;
}

std::optional<std::string> life::ended() const {
  const auto now = read();
  if (now && !(now->flags & dying)) return std::nullopt;
  return "its process " + std::to_string(process_) + (now ? " is ending" : " has ended");
}

bool life::is_stopped() const {
  const auto now = read();
  return now && (now->letter == 'T' || now->letter == 't');
}

}  // namespace sheaf::shm
