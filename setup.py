# SPDX-License-Identifier: Apache-2.0
"""The part of the build that pyproject.toml cannot say: two modules in C, which an installation may lack.

They are the hot path of recording and the scanner that cuts big JSON documents. Where they cannot be
compiled, `grademl_otel.ring.plaincore` and `grademl_otel.analyzers.sources.formats.jsonscan` do the same in
Python. A Python without a global interpreter lock gets none: nothing else orders the calls of the first.
"""

import sysconfig

from setuptools import Extension, setup

MODULES = [
    Extension("grademl_otel.ring._core", ["grademl_otel/ring/_core.c"], optional=True),
    Extension(
        "grademl_otel.analyzers.sources.formats._jsonscan",
        ["analyzers/sources/formats/_jsonscan.c"],
        optional=True,
    ),
]

setup(ext_modules=[] if sysconfig.get_config_var("Py_GIL_DISABLED") else MODULES)
