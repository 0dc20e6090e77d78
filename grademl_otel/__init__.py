# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry tracing of machine-learning workflows; see README.md.

Importing this package imports no ML framework and nothing of the analyzer. A script that is not started under
`opentelemetry-instrument` calls :func:`instrument` itself, best before it builds loaders and optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grademl_otel.version import __version__

if TYPE_CHECKING:
    from grademl_otel.blocks import run
    from grademl_otel.manual import phase, step

__all__ = ["__version__", "instrument", "phase", "run", "step", "uninstrument"]


def __getattr__(name: str) -> Any:
    # Every Python process of an instrumented program imports this package; few need blocks.
    if name not in ("phase", "run", "step"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from grademl_otel import blocks, manual

    # Found at once from now on.
    globals().update(phase=manual.phase, run=blocks.run, step=manual.step)
    return globals()[name]


def instrument() -> None:
    """Record this process' training from here on, as `opentelemetry-instrument` would; never raises."""
    try:
        from grademl_otel.instrumentations.torch import TorchInstrumentor

        instrumentor = TorchInstrumentor()
        if not instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.instrument(skip_dep_check=True)
    except Exception as error:
        from grademl_otel.messages import warn

        warn(f"nothing is recorded: {type(error).__name__}: {error}")


def uninstrument() -> None:
    """End the run, if any, and give every patched object back as it was."""
    from grademl_otel.instrumentations.torch import TorchInstrumentor

    instrumentor = TorchInstrumentor()
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def load_ipython_extension(shell: object) -> None:
    """`%load_ext grademl_otel`: record the training of a notebook's cells."""
    instrument()


def unload_ipython_extension(shell: object) -> None:
    """`%unload_ext grademl_otel`."""
    uninstrument()
