# SPDX-License-Identifier: MIT
"""Benchmarks of CUDA tensors: the kernels, local passes, and whole gathers of several ranks on one GPU."""
