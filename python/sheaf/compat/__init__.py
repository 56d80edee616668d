# SPDX-License-Identifier: MIT
"""Drop-ins for the padding helper that four model packages carry, each under its own names:
`sys.modules["spear_tts_pytorch.distributed"] = sheaf.compat.spear_tts`."""

from sheaf.compat import mirasol, musiclm, spear_tts, st_moe

__all__ = ["mirasol", "musiclm", "spear_tts", "st_moe"]
