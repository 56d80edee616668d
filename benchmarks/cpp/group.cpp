// SPDX-License-Identifier: MIT
#include "group.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "core/settings.hpp"
#include "shm/meeting.hpp"

namespace bench {
namespace {

// A file a text. It gets its name when it is whole, so nobody reads half of one.
class folder_bulletin final : public sheaf::shm::bulletin {
 public:
  folder_bulletin(std::filesystem::path folder, int rank) : folder_(std::move(folder)), rank_(rank) {}

  void set(const std::string& name, const std::string& text) override {
    const auto draft = folder_ / ("draft-" + std::to_string(rank_));
    std::ofstream(draft) << text;
    std::filesystem::rename(draft, path_of(name));
  }
  std::optional<std::string> get(const std::string& name) override {
    std::ifstream file(path_of(name));
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path_of(std::string name) const {
    for (auto& letter : name) letter = letter == '/' ? '.' : letter;
    return folder_ / name;
  }

  const std::filesystem::path folder_;
  const int rank_;
};

// Nobody reads notes here: an error ends the run.
class no_notices final : public sheaf::notices {
 public:
  std::string name() const override { return "mpirun"; }
  std::chrono::milliseconds timeout() const override { return std::chrono::minutes(2); }
  void publish(const std::string&) noexcept override {}
  std::optional<std::string> published(int) noexcept override { return std::nullopt; }
};

}  // namespace

std::shared_ptr<sheaf::engine> make_engine(const ranks& all) {
  const auto with = sheaf::read_settings();
  const auto told = std::make_shared<no_notices>();
  sheaf::shm::meeting meeting(std::make_shared<folder_bulletin>(all.folder(), all.rank()), all.rank(), all.world(),
                              with);
  auto met = meeting.join(*told, {});
  if (!met.place) throw std::runtime_error("these ranks cannot share memory: " + met.why_not);
  return std::make_shared<sheaf::shm::engine>(sheaf::shm::engine::membership{
      met.place, all.rank(), told, std::move(met.lives), static_cast<std::size_t>(with.pool_bytes)});
}

}  // namespace bench
