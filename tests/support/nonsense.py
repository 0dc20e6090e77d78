# SPDX-License-Identifier: Apache-2.0
"""Values that make no sense, for each of our variables: one row for each, or `test_config` fails."""

from __future__ import annotations

from typing import Final

# What a shell, a template or a typing error puts there. No NUL: an environment cannot hold one.
_ANYWHERE: Final = (
    "\x1b[31mred\n\rtwo lines\x07",
    "\udcff\udcfe",
    "\u202eevil",
    "x" * 5000,
    "$UNSET",
    "{{ value }}",
)
_NUMBERS: Final = ("many", "-1", "nan", "inf", "-inf", "1e999", "9" * 5000, "0x10", "1,5", "١٢٣ years")
_NO_FOLDER: Final = (
    "/dev/null",
    "/dev/null/deeper",
    "~no-such-user/x",
    "/proc/version",
    f"/tmp/{'x' * 300}/y",
)

NONSENSE: Final[dict[str, tuple[str, ...]]] = {
    "GRADEML_EXPORTER": (*_ANYWHERE, "jaeger", "none,file", ",", "file;otlp", "file otlp", "0"),
    "GRADEML_STORE": _NO_FOLDER,
    "GRADEML_RUN_ID": (*_ANYWHERE, "my run", "0" * 32, "f" * 31, "f" * 33, "-" * 32, "g" * 32, "٣" * 32),
    "GRADEML_EXIT_WAIT": (*_ANYWHERE, *_NUMBERS, "601", "2 s"),
    "GRADEML_BUDGET": (*_ANYWHERE, *_NUMBERS, "0", "0.001", "101", "1 %"),
    "GRADEML_DEVICE_TIME": (*_ANYWHERE, "sometimes", "2", "-1"),
    "GRADEML_GPU_INTERVAL": (*_ANYWHERE, *_NUMBERS, "0.05", "3601", "1 s", "off"),
    "GRADEML_HOST_INTERVAL": (*_ANYWHERE, *_NUMBERS, "0.05", "3601", "500ms"),
    "GRADEML_PROC": ("/no/such/proc", *_NO_FOLDER),
    "GRADEML_SYS": ("/no/such/sys", *_NO_FOLDER),
    "GRADEML_IN_PROCESS": (*_ANYWHERE, "perhaps", "2", "-1"),
    "GRADEML_RING_DIR": _NO_FOLDER,
    "GRADEML_RING_BYTES": (*_ANYWHERE, *_NUMBERS, "12", "65535", "1073741825", "1e6", "2.5", "2M"),
    "GRADEML_SPOOL_DIR": _NO_FOLDER,
    "GRADEML_SPOOL_BYTES": (*_ANYWHERE, *_NUMBERS, "1048575", "1099511627777", "1G"),
    "GRADEML_RELAY_LOG": ("/dev/null/log", "~no-such-user/log", "/tmp", "/no/such/folder/log"),
    "GRADEML_RELAY": (*_ANYWHERE, "maybe", "2"),
}
