// SPDX-License-Identifier: MIT
// Functions that the process may have, by name: so Python's can be called where there is Python, and nothing needs it.
#pragma once

#include <dlfcn.h>

namespace sheaf {

// Null: there is none.
template <class Function>
Function* find_symbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace sheaf
