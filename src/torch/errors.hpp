// SPDX-License-Identifier: MIT
// The core's errors as torch's: ValueError, torch.distributed.DistBackendError, RuntimeError.
#pragma once

#include <c10/util/Exception.h>

#include <sheaf/error.hpp>

namespace sheaf {

template <class Body>
auto translated(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const value_error& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const rank_error& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  } catch (const interrupted& error) {
    C10_THROW_ERROR(Error, error.what());
  }
}

}  // namespace sheaf
