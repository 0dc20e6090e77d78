# SPDX-License-Identifier: Apache-2.0
"""What is done with arrays in many places."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def changes(*keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a row of ``keys``, arrays of one length, differs from the one before; the first does."""
    found = np.ones(len(keys[0]), np.bool_)
    found[1:] = False
    for key in keys:
        found[1:] |= key[1:] != key[:-1]
    return found
