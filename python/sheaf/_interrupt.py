# SPDX-License-Identifier: MIT
"""Lets Ctrl-C end a wait: C++ asks here, between slices of a long wait, whether a signal handler has raised."""

import ctypes
import threading

from sheaf import _library

_raise_later = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_later.argtypes = [ctypes.c_ulong, ctypes.py_object]


def _pending() -> int:
    try:
        ctypes.pythonapi.PyErr_CheckSignals()
    except BaseException as error:  # whatever the handler raises: KeyboardInterrupt, SystemExit, the user's own
        # The op ends with an error of its own, possibly below code that is not ours (backward); this one follows it.
        _raise_later(threading.get_ident(), type(error))
        return 1
    return 0


_callback = ctypes.CFUNCTYPE(ctypes.c_int)(_pending)


def install() -> None:
    ctypes.CDLL(str(_library.find().path)).sheaf_on_wait(_callback)
