# SPDX-License-Identifier: MIT
"""Side-by-side timing of Sheaf and what people use in its place: `python -m benchmarks`."""
