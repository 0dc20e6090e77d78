# SPDX-License-Identifier: Apache-2.0
"""What is hooked of `torch.Tensor` and given back for good when Dynamo begins to trace.

Dynamo looks into the dictionaries of classes, and guards what it finds there: it would break its graphs at
hooked methods, and compile again where they come or go.
"""

from __future__ import annotations

from typing import Final

from grademl_otel.instrumentations.patches import Patches

hooks: Final = Patches()
"""The replacements of `devicecalls`; `compile` has them restored."""
