// SPDX-License-Identifier: MIT
// How the ranks of a group come to one arena: cards in a store that all of them reach, then one file passed from rank 0
// to the others through a socket. They all come to it, or all learn why not.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/notices.hpp"
#include "core/patience.hpp"
#include "core/settings.hpp"
#include "shm/arena.hpp"
#include "shm/descriptor.hpp"
#include "shm/life.hpp"

namespace sheaf::shm {

// Texts under names, seen by all ranks of the group. `get` does not wait.
class bulletin {
 public:
  virtual ~bulletin() = default;
  virtual void set(const std::string& name, const std::string& text) = 0;
  virtual std::optional<std::string> get(const std::string& name) = 0;
};

class meeting {
 public:
  meeting(std::shared_ptr<bulletin> on, int rank, int world, settings with);

  struct outcome {
    std::shared_ptr<arena> place;            // none: this group cannot have one
    std::vector<std::optional<life>> lives;  // by rank
    std::string why_not;
  };
  // Waits for all ranks; throws rank_error at the call's deadline, and a later try goes on from there. Throws
  // value_error, the same on every rank, when their settings disagree.
  outcome join(notices& told, const call& now);

 private:
  struct card {
    std::string settings, host, processes, why_not;  // processes: the namespace that `process` is of
    int process = 0;
    unsigned user = 0;
    int layout = 0;  // of the memory, as its build has it
  };
  struct door;  // rank 0's socket

  card own_card() const;
  static std::string text_of(const card& one);
  static card card_from(const std::string& text);
  std::vector<std::string> read_all(const std::string& topic, patience& waiting);
  std::optional<std::string> find_obstacle() const;
  void open_door();
  void serve(patience& waiting);
  void knock(patience& waiting);
  void watch_all();
  // Asked between slices of a wait: a rank whose card is here may die before it comes.
  bool throw_if_dead() const;
  void say(const std::string& topic, const std::string& text);

  const std::shared_ptr<bulletin> on_;
  const int rank_;
  const int world_;
  const settings settings_;
  geometry shape_;
  std::vector<card> cards_;
  std::vector<std::optional<life>> lives_;  // by rank, of those whose cards are here
  std::shared_ptr<door> door_;
  std::shared_ptr<arena> place_;
  std::optional<std::string> failure_;  // why this rank did not come to the arena; empty: it did
};

}  // namespace sheaf::shm
