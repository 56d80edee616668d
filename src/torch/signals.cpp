// SPDX-License-Identifier: MIT
// Ctrl-C inside Python: a waiting main thread lets Python run its signal handlers. Python's functions are looked up by
// name, so that the library needs no Python and serves processes that have none.
#include <unistd.h>

#include <memory>

#include "core/interrupt.hpp"
#include "core/symbol.hpp"

namespace sheaf {
namespace {

struct python {
  int (*is_initialized)() = find_symbol<int()>("Py_IsInitialized");
  int (*take_lock)() = find_symbol<int()>("PyGILState_Ensure");
  void (*drop_lock)(int) = find_symbol<void(int)>("PyGILState_Release");
  int (*check_signals)() = find_symbol<int()>("PyErr_CheckSignals");
  void (*fetch)(void**, void**, void**) = find_symbol<void(void**, void**, void**)>("PyErr_Fetch");
  void (*restore)(void*, void*, void*) = find_symbol<void(void*, void*, void*)>("PyErr_Restore");
  int (*call_later)(int (*)(void*), void*) = find_symbol<int(int (*)(void*), void*)>("Py_AddPendingCall");

  bool is_there() const {
    return is_initialized && take_lock && drop_lock && check_signals && fetch && restore && call_later &&
           is_initialized();
  }
};

const python& api() {
  static const python functions;
  return functions;
}

// What a handler raised: type, value, traceback.
struct raised {
  void* parts[3];
};

int raise_now(void* what) {
  const std::unique_ptr<raised> kept(static_cast<raised*>(what));
  api().restore(kept->parts[0], kept->parts[1], kept->parts[2]);
  return -1;
}

// Whether a signal handler has raised. The wait ends with an error of Sheaf's own, possibly below code that is not
// Sheaf's (backward); what the handler raised follows as soon as Python runs again.
int handler_raised() {
  if (getpid() != gettid() || !api().is_there()) return 0;  // Python runs handlers in the main thread alone
  const int lock = api().take_lock();
  const bool has_raised = api().check_signals() != 0;
  if (has_raised) {
    auto kept = std::make_unique<raised>();
    api().fetch(&kept->parts[0], &kept->parts[1], &kept->parts[2]);
    if (api().call_later(raise_now, kept.get()) == 0) kept.release();
  }
  api().drop_lock(lock);
  return has_raised ? 1 : 0;
}

const bool installed = (sheaf_on_wait(handler_raised), true);

}  // namespace
}  // namespace sheaf
