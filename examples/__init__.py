# SPDX-License-Identifier: MIT
"""Programs that show Sheaf at work."""
