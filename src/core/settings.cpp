// SPDX-License-Identifier: MIT
#include "core/settings.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdint>
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

std::int64_t number(std::string_view name, std::string_view text, std::int64_t least, std::string_view expected,
                    std::int64_t most = INT64_MAX) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || value < least || value > most) throw refused(name, text, expected);
  return value;
}

std::int64_t quarter_of_memory() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} / 4 * ::sysconf(_SC_PAGESIZE) >> 20 << 20;
}

}  // namespace

std::string settings::text() const {
  return std::string("SHEAF_CHECK=") + (check ? "1" : "0") + " SHEAF_ENGINE=" + engine +
         " SHEAF_MESSAGE_BYTES=" + std::to_string(message_bytes) +
         (is_pool_given ? " SHEAF_POOL_MB=" + std::to_string(pool_bytes >> 20) : "");
}

settings read_settings() {
  settings result;
  if (const auto check = variable("SHEAF_CHECK"); !check.empty()) {
    if (check != "0" && check != "1") throw refused("SHEAF_CHECK", check, "0 or 1");
    result.check = check == "1";
  }
  if (const auto bytes = variable("SHEAF_MESSAGE_BYTES"); !bytes.empty()) {
    result.message_bytes = number("SHEAF_MESSAGE_BYTES", bytes, 64, "a number of bytes, 64 or more");
  }
  result.pool_bytes = quarter_of_memory();
  if (const auto pool = variable("SHEAF_POOL_MB"); !pool.empty()) {
    result.pool_bytes = number("SHEAF_POOL_MB", pool, 1, "a number of MiB from 1 to 1048576", 1 << 20) << 20;
    result.is_pool_given = true;
  }
  if (const auto engine = variable("SHEAF_ENGINE"); !engine.empty()) {
    if (engine != "auto" && engine != "shm" && engine != "c10d" && engine != "collectives") {
      throw refused("SHEAF_ENGINE", engine, "auto, shm, c10d or collectives");
    }
    result.engine = engine;
  }
  return result;
}

}  // namespace sheaf
