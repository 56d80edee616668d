// SPDX-License-Identifier: MIT
#include "shm/meeting.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <set>
#include <sheaf/error.hpp>
#include <string_view>
#include <thread>

#include "core/verdict.hpp"
#include "shm/socket.hpp"

namespace sheaf::shm {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto look = 20ms;
// Larger results go through staging buffers. Address space is not for nothing: it bounds how many groups there can be.
constexpr auto largest_segment = std::size_t{4} << 30;

std::string first_line_of(const char* path) {
  const descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  const auto got = file ? ::read(file.number(), text.data(), text.size()) : 0;
  const std::string_view all(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  return std::string(all.substr(0, all.find('\n')));
}

// The same for all processes that run on one kernel. SHEAF_HOST_ID stands in for it in tests.
std::string host_id() {
  if (const char* given = std::getenv("SHEAF_HOST_ID")) return given;
  return first_line_of("/proc/sys/kernel/random/boot_id");
}

std::string link_text(const char* path) {
  std::array<char, 256> text{};
  const auto got = ::readlink(path, text.data(), text.size());
  return {text.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

std::string random_name() {
  std::uint64_t bits[2] = {};
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits) throw_system_error("getrandom");
  return "sheaf-" + std::to_string(bits[0]) + "-" + std::to_string(bits[1]);
}

}  // namespace

// Rank 0's: everybody who comes and is who it says it is gets the file.
struct meeting::door {
  std::string name;
  descriptor listener;
  descriptor file;
  std::set<int> guests;  // ranks
};

meeting::meeting(std::shared_ptr<bulletin> on, int rank, int world, settings with)
    : on_(std::move(on)), rank_(rank), world_(world), settings_(std::move(with)) {
  shape_ = {world_, std::min(largest_segment, static_cast<std::size_t>(settings_.pool_bytes))};
  say("card", text_of(own_card()));
}

void meeting::say(const std::string& topic, const std::string& text) {
  on_->set("sheaf/shm/" + topic + "/" + std::to_string(rank_), text);
}

meeting::card meeting::own_card() const {
  card own{settings_.text(), host_id(),     link_text("/proc/self/ns/pid"), "", static_cast<int>(::getpid()),
           ::geteuid(),      layout_version};
  if (settings_.engine == "c10d") own.why_not = "SHEAF_ENGINE=c10d";
  if (world_ > static_cast<int>(max_ranks)) own.why_not = "more than " + std::to_string(max_ranks) + " ranks";
  if (link_text("/proc/self") != std::to_string(own.process)) own.why_not = "/proc does not show its processes";
  if (!own.why_not.empty()) return own;
  try {
    make_memory_file(1 << 20);
  } catch (const std::exception& error) {
    own.why_not = error.what();
  }
  return own;
}

std::string meeting::text_of(const card& one) {
  return one.settings + "\n" + one.host + "\n" + one.processes + "\n" + std::to_string(one.process) + "\n" +
         std::to_string(one.user) + "\n" + one.why_not + "\n" + std::to_string(one.layout);
}

meeting::card meeting::card_from(const std::string& text) {
  std::array<std::string_view, 7> lines;
  std::string_view rest = text;
  for (auto& line : lines) {
    line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  card one{std::string(lines[0]), std::string(lines[1]), std::string(lines[2]), std::string(lines[5])};
  const auto read = [](std::string_view line, auto& number) {
    std::from_chars(line.data(), line.data() + line.size(), number);
  };
  read(lines[3], one.process);
  read(lines[4], one.user);
  read(lines[6], one.layout);
  return one;
}

std::vector<std::string> meeting::read_all(const std::string& topic, patience& waiting) {
  std::vector<std::optional<std::string>> texts(world_);
  const auto is_there = [&](int peer) {
    if (!texts[peer]) texts[peer] = on_->get("sheaf/shm/" + topic + "/" + std::to_string(peer));
    return texts[peer].has_value();
  };
  for (int peer = 0; peer < world_; ++peer) {
    auto pause = std::chrono::microseconds(50);
    waiting.wait(
        peer,
        [&](clock::time_point until) {
          while (!is_there(peer)) {
            if (clock::now() >= until) return throw_if_dead();
            std::this_thread::sleep_for(pause);
            pause = std::min<std::chrono::microseconds>(2 * pause, 10ms);
          }
          return true;
        },
        [&] {
          std::vector<int> missing;
          for (int one = 0; one < world_; ++one) {
            if (!is_there(one)) missing.push_back(one);
          }
          return missing;
        });
  }
  std::vector<std::string> all;
  for (auto& text : texts) all.push_back(std::move(*text));
  return all;
}

// From the cards alone, so that every rank comes to the same.
std::optional<std::string> meeting::find_obstacle() const {
  std::vector<std::string> given;
  for (const auto& one : cards_) given.push_back(one.settings);
  for (const auto& one : given) {
    if (one != given[0]) throw value_error("ranks disagree on settings: " + group_by_value(given));
  }
  for (std::size_t rank = 0; rank < cards_.size(); ++rank) {
    const auto& one = cards_[rank];
    const auto who = "rank " + std::to_string(rank);
    if (!one.why_not.empty()) return one.why_not.starts_with("SHEAF_") ? one.why_not : who + ": " + one.why_not;
    if (one.host != cards_[0].host) return who + " is on another host than rank 0";
    if (one.user != cards_[0].user) return who + " belongs to another user than rank 0";
    if (one.processes != cards_[0].processes) return who + " is in another pid namespace than rank 0";
    if (one.layout != cards_[0].layout) return who + " has another build of Sheaf than rank 0";
  }
  return std::nullopt;
}

void meeting::watch_all() {
  lives_.resize(world_);
  for (int peer = 0; peer < world_; ++peer) {
    try {
      if (peer != rank_ && !lives_[peer]) lives_[peer].emplace(cards_[peer].process);
    } catch (const std::exception& error) {
      if (!failure_) failure_ = error.what();
    }
  }
}

bool meeting::throw_if_dead() const {
  for (int peer = 0; peer < static_cast<int>(lives_.size()); ++peer) {
    if (peer == rank_) continue;
    if (lives_[peer]) {
      if (const auto why = lives_[peer]->ended()) throw peer_gone{peer, *why};
    } else if (::kill(cards_[peer].process, 0) != 0 && errno == ESRCH) {
      throw peer_gone{peer, "its process " + std::to_string(cards_[peer].process) + " has ended"};
    }
  }
  return false;
}

void meeting::open_door() {
  if (door_) return;
  try {
    if (failure_) throw std::runtime_error(*failure_);
    auto made = std::make_shared<door>();
    made->file = make_memory_file(shape_.bytes());
    place_ = std::make_shared<arena>(made->file, shape_);
    made->name = random_name();
    made->listener = listen_at(made->name);
    door_ = std::move(made);
    say("door", door_->name);
  } catch (const std::exception& error) {
    failure_ = error.what();
    say("door", "");
  }
}

void meeting::serve(patience& waiting) {
  const auto is_settled = [&](int peer) {
    return door_->guests.contains(peer) || on_->get("sheaf/shm/came/" + std::to_string(peer)).has_value();
  };
  const auto let_in = [&](const descriptor& guest) {
    const auto who = other_end(guest);
    const int peer = receive_number(guest);
    const bool welcome = peer > 0 && peer < world_ && who.user == ::geteuid() && who.process == cards_[peer].process;
    send_number(guest, welcome ? 1 : 0, welcome ? &door_->file : nullptr);
    if (welcome) door_->guests.insert(peer);
  };
  for (int peer = 1; peer < world_; ++peer) {
    waiting.wait(
        peer,
        [&](clock::time_point until) {
          while (!is_settled(peer)) {
            if (clock::now() >= until) return throw_if_dead();
            try {
              if (const auto guest = accept_from(door_->listener, look)) let_in(*guest);
            } catch (const std::exception&) {
              // It says by itself what went wrong at its end.
            }
          }
          return true;
        },
        [&] { return is_settled(peer) ? std::vector<int>() : std::vector<int>{peer}; });
  }
}

void meeting::knock(patience& waiting) {
  std::optional<std::string> name;
  waiting.wait(
      0,
      [&](clock::time_point until) {
        while (!(name = on_->get("sheaf/shm/door/0"))) {
          if (clock::now() >= until) return throw_if_dead();
          std::this_thread::sleep_for(200us);
        }
        return true;
      },
      [] { return std::vector<int>{0}; });
  if (name->empty()) return;  // rank 0 says why
  try {
    const auto connection = connect_to(*name);
    const auto host = other_end(connection);
    if (host.user != ::geteuid()) throw std::runtime_error("rank 0 belongs to another user");
    if (host.process != cards_[0].process) throw std::runtime_error("rank 0 is in another pid namespace");
    send_number(connection, rank_);
    descriptor file;
    if (receive_number(connection, &file) != 1 || !file) {
      throw std::runtime_error("rank 0 sees another user or pid namespace here");
    }
    place_ = std::make_shared<arena>(file, shape_);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

meeting::outcome meeting::join(notices& told, const call& now) {
  patience waiting(told, now);
  cards_.clear();
  for (const auto& text : read_all("card", waiting)) cards_.push_back(card_from(text));
  if (auto why = find_obstacle()) return {{}, {}, *why};
  watch_all();

  if (rank_ == 0) {
    open_door();
    if (door_) serve(waiting);
  } else if (!place_ && !failure_) {
    knock(waiting);
  }
  say("came", failure_.value_or(""));
  const auto came = read_all("came", waiting);
  waiting.finish();
  door_.reset();
  for (int peer = 0; peer < world_; ++peer) {
    if (!came[peer].empty()) return {{}, {}, "rank " + std::to_string(peer) + ": " + came[peer]};
  }
  return {place_, std::move(lives_), ""};
}

}  // namespace sheaf::shm
