// SPDX-License-Identifier: MIT
#include "core/settings.hpp"

#include <charconv>
#include <cstdlib>
#include <sheaf/error.hpp>
#include <string_view>

namespace sheaf {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

value_error refused(std::string_view name, std::string_view got, std::string_view expected) {
  return value_error(std::string(name) + "=" + std::string(got) + " means nothing: expected " + std::string(expected));
}

}  // namespace

std::string settings::text() const {
  return std::string("SHEAF_CHECK=") + (check ? "1" : "0") + " SHEAF_ENGINE=" + engine +
         " SHEAF_MESSAGE_BYTES=" + std::to_string(message_bytes);
}

settings read_settings() {
  settings result;
  if (const auto check = variable("SHEAF_CHECK"); !check.empty()) {
    if (check != "0" && check != "1") throw refused("SHEAF_CHECK", check, "0 or 1");
    result.check = check == "1";
  }
  if (const auto bytes = variable("SHEAF_MESSAGE_BYTES"); !bytes.empty()) {
    const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), result.message_bytes);
    if (error != std::errc{} || end != bytes.data() + bytes.size() || result.message_bytes < 64) {
      throw refused("SHEAF_MESSAGE_BYTES", bytes, "a number of bytes, 64 or more");
    }
  }
  if (const auto engine = variable("SHEAF_ENGINE"); !engine.empty()) {
    if (engine != "auto" && engine != "c10d") throw refused("SHEAF_ENGINE", engine, "auto or c10d");
    result.engine = engine;
  }
  return result;
}

}  // namespace sheaf
