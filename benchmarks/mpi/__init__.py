# SPDX-License-Identifier: MIT
"""Sheaf's shared-memory engine beside MPI, in C++ without torch (`benchmarks/cpp`): builds, runs, judges, reports."""
