# SPDX-License-Identifier: Apache-2.0
"""Field values of NVML: many counters of a GPU in one call, each with an error of its own.

The structures are those of the C interface, kept from call to call; those of nvidia-ml-py are made anew each
time and cost more than the call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Final

from grademl_otel.instrumentations.gpu.plausible import Implausible

ALL: Final = 0xFFFFFFFF
"""The scope that is all links together."""

Field = tuple[int, int]
"""Number and scope: which link, or `ALL`; 0 where there is none."""
Answer = tuple[int, int, bytes]
"""Type, result (0: it has a value) and value of a field, for `value`."""


class _FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = [
        ("field_id", ctypes.c_uint32),
        ("scope_id", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latency_us", ctypes.c_int64),
        ("value_type", ctypes.c_uint32),
        ("result", ctypes.c_int32),
        ("value", ctypes.c_uint64),
    ]


_ANSWER: Final = struct.Struct("=24xIi8s")
"""Type, result and value of one."""
_VALUES: Final = {
    0: struct.Struct("=d"),
    1: struct.Struct("=I4x"),
    2: struct.Struct("=Q"),  # unsigned long, of 64 bits wherever there is NVML on Linux
    3: struct.Struct("=Q"),
    4: struct.Struct("=q"),
    5: struct.Struct("=i4x"),
    6: struct.Struct("=H6x"),
}


class Fields:
    """Some fields of one device, read together; ``handle`` is one of nvidia-ml-py."""

    def __init__(self, api: Any, handle: object, fields: Sequence[Field]) -> None:
        self._function = getattr(api.nvmlLib, "nvmlDeviceGetFieldValues", None)
        self._error: type[Exception] = api.NVMLError
        self._handle = handle
        self._count = len(fields)
        self._array = (_FieldValue * len(fields))()
        for each, (number, scope) in zip(self._array, fields, strict=True):
            each.field_id, each.scope_id = number, scope

    def read(self) -> list[Answer]:
        """Return the answer for each.

        Raises NVMLError when the call as a whole failed, NotImplementedError where there is no such call.
        """
        if not self._count:
            return []
        if self._function is None:
            raise NotImplementedError("nvmlDeviceGetFieldValues")
        result = self._function(self._handle, ctypes.c_int32(self._count), self._array)
        if result:
            raise self._error(result)
        return list(_ANSWER.iter_unpack(memoryview(self._array).cast("B")))


def value(value_type: int, content: bytes) -> int:
    """Return the value of a field, a whole number. Raises `Implausible` for a type that nobody knows."""
    layout = _VALUES.get(value_type)
    if layout is None:
        raise Implausible(f"a field of type {value_type}")
    try:
        return int(layout.unpack(content)[0])
    except (ValueError, OverflowError):  # not a number, infinite
        raise Implausible("a field that is no number") from None
