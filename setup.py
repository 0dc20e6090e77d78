# SPDX-License-Identifier: Apache-2.0
"""The part of the build that pyproject.toml cannot say: the hot path in C, which an installation may lack.

Where it cannot be compiled, `grademl_otel.ring.plaincore` does the same in Python. A Python without a global
interpreter lock gets none: nothing else orders its calls.
"""

import sysconfig

from setuptools import Extension, setup

CORE = Extension("grademl_otel.ring._core", ["grademl_otel/ring/_core.c"], optional=True)

setup(ext_modules=[] if sysconfig.get_config_var("Py_GIL_DISABLED") else [CORE])
