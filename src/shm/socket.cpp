// SPDX-License-Identifier: MIT
#include "shm/socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "shm/mapping.hpp"

namespace sheaf::shm {
namespace {

struct address {
  sockaddr_un text{};
  socklen_t length;

  explicit address(const std::string& name) {
    text.sun_family = AF_UNIX;
    if (name.size() + 1 > sizeof(text.sun_path)) throw std::runtime_error("the name of a socket is too long");
    std::memcpy(text.sun_path + 1, name.data(), name.size());  // a leading zero: the abstract namespace
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&text); }
};

descriptor make_socket() {
  descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made) throw_system_error("making a local socket");
  return made;
}

void limit_waits(const descriptor& connection) {
  const timeval limit{2, 0};
  ::setsockopt(connection.number(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(connection.number(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// A message of one number, with room for one descriptor beside it.
struct parcel {
  int number = 0;
  iovec body{&number, sizeof number};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr head{};

  parcel() {
    head.msg_iov = &body;
    head.msg_iovlen = 1;
  }
  void make_room() {
    head.msg_control = control;
    head.msg_controllen = sizeof control;
  }
};

}  // namespace

descriptor listen_at(const std::string& name) {
  auto made = make_socket();
  const address at(name);
  if (::bind(made.number(), at.get(), at.length) != 0) throw_system_error("naming a local socket");
  if (::listen(made.number(), SOMAXCONN) != 0) throw_system_error("listening on a local socket");
  return made;
}

descriptor connect_to(const std::string& name) {
  auto made = make_socket();
  limit_waits(made);
  const address at(name);
  if (::connect(made.number(), at.get(), at.length) != 0) throw_system_error("connecting to rank 0's socket");
  return made;
}

std::optional<descriptor> accept_from(const descriptor& listener, std::chrono::milliseconds within) {
  pollfd one{listener.number(), POLLIN, 0};
  if (::poll(&one, 1, static_cast<int>(within.count())) <= 0) return std::nullopt;
  descriptor made(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!made) return std::nullopt;
  limit_waits(made);
  return made;
}

credentials other_end(const descriptor& connection) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(connection.number(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
    throw_system_error("asking who is at the other end of a local socket");
  }
  return {static_cast<int>(who.pid), who.uid};
}

void send_number(const descriptor& connection, int number, const descriptor* file) {
  parcel out;
  out.number = number;
  if (file) {
    out.make_room();
    auto* beside = CMSG_FIRSTHDR(&out.head);
    beside->cmsg_level = SOL_SOCKET;
    beside->cmsg_type = SCM_RIGHTS;
    beside->cmsg_len = CMSG_LEN(sizeof(int));
    const int handed = file->number();
    std::memcpy(CMSG_DATA(beside), &handed, sizeof handed);
  }
  if (::sendmsg(connection.number(), &out.head, MSG_NOSIGNAL) != sizeof number) {
    throw_system_error("sending through a local socket");
  }
}

int receive_number(const descriptor& connection, descriptor* file) {
  parcel in;
  in.make_room();
  const auto got = ::recvmsg(connection.number(), &in.head, MSG_CMSG_CLOEXEC);
  if (got < 0) throw_system_error("receiving through a local socket");
  if (got != sizeof in.number) throw std::runtime_error("the other end of a local socket hung up");
  for (auto* beside = CMSG_FIRSTHDR(&in.head); beside; beside = CMSG_NXTHDR(&in.head, beside)) {
    if (beside->cmsg_level != SOL_SOCKET || beside->cmsg_type != SCM_RIGHTS) continue;
    int handed = -1;
    std::memcpy(&handed, CMSG_DATA(beside), sizeof handed);
    descriptor taken(handed);
    if (file) *file = std::move(taken);
  }
  return in.number;
}

}  // namespace sheaf::shm
