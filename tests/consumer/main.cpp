// SPDX-License-Identifier: MIT
// A program outside the project: it sees only what is installed.
#include <torch/torch.h>

#include <cstdint>
#include <iostream>
#include <sheaf/layout.hpp>
#include <vector>

int main() {
  // Rank r holds r + 1 rows of three floats.
  const std::vector<std::int64_t> shape{0, 3}, sizes{1, 2, 3};
  const auto place = sheaf::make_layout(shape, 0, sizes, sizeof(float));
  const auto gathered = torch::empty({place.rows, 3});
  if (gathered.nbytes() != static_cast<std::size_t>(place.bytes()) || place.offsets[2] != 3) {
    std::cerr << "consumer: wrong layout\n";
    return 1;
  }
  std::cout << "consumer: " << place.rows << " rows in " << place.bytes() << " bytes\n";
}
