// SPDX-License-Identifier: MIT
// Tagged messages over a c10d backend (Gloo, MPI, or any other that sends and receives CPU tensors by tag). Never the
// group's collectives, so that other users of the group cannot clash with Sheaf.
#pragma once

#include "c10d/link.hpp"

namespace sheaf::c10d_engine {

class channel final : public link {
 public:
  explicit channel(const group_pointer& group);

  std::unique_ptr<p2p::transfer> send(int peer, std::uint32_t tag, memory bytes) override;
  std::unique_ptr<p2p::transfer> receive(int peer, std::uint32_t tag, memory bytes) override;
  void keep(std::unique_ptr<p2p::transfer> abandoned) override;

  bool carries_data() const override { return true; }
  std::string describe() const override;

 private:
  const bool is_gloo_;
};

}  // namespace sheaf::c10d_engine
