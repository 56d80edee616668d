// SPDX-License-Identifier: MIT
// Ctrl-C inside Python: a waiting main thread lets Python run its signal handlers. Python's functions are looked up by
// name, so that the library needs no Python and serves processes that have none.
#include <dlfcn.h>
#include <unistd.h>

#include "core/interrupt.hpp"

namespace sheaf {
namespace {

template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

struct python {
  int (*is_initialized)() = find<int()>("Py_IsInitialized");
  int (*take_lock)() = find<int()>("PyGILState_Ensure");
  void (*drop_lock)(int) = find<void(int)>("PyGILState_Release");
  int (*check_signals)() = find<int()>("PyErr_CheckSignals");
  void* (*raised_type)() = find<void*()>("PyErr_Occurred");
  void (*clear)() = find<void()>("PyErr_Clear");
  unsigned long (*thread)() = find<unsigned long()>("PyThread_get_thread_ident");
  int (*raise_later)(unsigned long, void*) = find<int(unsigned long, void*)>("PyThreadState_SetAsyncExc");

  bool is_there() const {
    return is_initialized && take_lock && drop_lock && check_signals && raised_type && clear && thread && raise_later &&
           is_initialized();
  }
};

// Whether a signal handler has raised. The wait ends with an error of Sheaf's own, possibly below code that is not
// Sheaf's (backward); what the handler raised follows as soon as Python runs again.
int handler_raised() {
  static const python api;
  if (getpid() != gettid() || !api.is_there()) return 0;  // Python runs handlers in the main thread alone
  const int lock = api.take_lock();
  const bool raised = api.check_signals() != 0;
  if (raised) {
    api.raise_later(api.thread(), api.raised_type());
    api.clear();
  }
  api.drop_lock(lock);
  return raised ? 1 : 0;
}

const bool installed = (sheaf_on_wait(handler_raised), true);

}  // namespace
}  // namespace sheaf
