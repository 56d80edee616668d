// SPDX-License-Identifier: MIT
#include "core/note.hpp"

#include <charconv>

#include "core/text.hpp"

namespace sheaf {

std::string note::encode() const { return std::to_string(sequence) + "\n" + group + "\n" + said; }

std::optional<note> note::decode(const std::string& text) {
  const auto first = text.find('\n');
  const auto second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos) return std::nullopt;
  note result{text.substr(first + 1, second - first - 1), 0, text.substr(second + 1)};
  std::from_chars(text.data(), text.data() + first, result.sequence);
  return result;
}

std::string describe_call(const call& now) {
  auto text = describe(now.head);
  const auto given = now.given.empty() && !now.numbers.empty() ? list(now.numbers) : now.given;
  if (!given.empty() && text.ends_with(')')) text.insert(text.size() - 1, ", sizes " + given);
  return text;
}

bool is_current(const std::optional<note>& left, const std::string& group, std::uint64_t sequence) {
  if (!left) return false;
  return left->group == group ? left->sequence >= sequence : !left->said.starts_with("finished");
}

std::string tell(int rank, const std::optional<note>& left, const std::string& group, std::uint64_t sequence) {
  const auto who = "rank " + std::to_string(rank);
  if (!left) return who + " never came";
  if (!is_current(left, group, sequence)) return who + " never came (before, it " + left->said + ")";
  if (left->group == group) return who + " " + left->said;
  return who + " never came: it " + left->said + " of group \"" + left->group + "\"";
}

}  // namespace sheaf
