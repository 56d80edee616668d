// SPDX-License-Identifier: MIT
// Local sockets in the abstract namespace, which the kernel forgets with the last descriptor; whoever is at the other
// end is known by its credentials.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "shm/descriptor.hpp"

namespace sheaf::shm {

struct credentials {
  int process = 0;  // 0: of another pid namespace
  unsigned user = 0;
};

// All throw runtime_error, with what was tried, when the system refuses.
descriptor listen_at(const std::string& name);
descriptor connect_to(const std::string& name);
// Nothing: nobody came by then.
std::optional<descriptor> accept_from(const descriptor& listener, std::chrono::milliseconds within);
credentials other_end(const descriptor& connection);

// A number and, with send, a descriptor. Both ends are prompt or gone: these wait for two seconds at most.
void send_number(const descriptor& connection, int number, const descriptor* file = nullptr);
int receive_number(const descriptor& connection, descriptor* file = nullptr);

}  // namespace sheaf::shm
