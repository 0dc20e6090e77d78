# SPDX-License-Identifier: Apache-2.0
"""Entry points that `opentelemetry-instrument` calls before and after it loads the instrumentors.

Neither may raise: an exception here would switch off every other instrumentation of the user's program.
"""

from __future__ import annotations

from grademl_otel.messages import warn


def pre_instrument() -> None:
    """Note the time: the run's span starts here, so that start-up is visible.

    The provider is noted as well: when an instrumentor of somebody raises, there is no call afterwards.
    """
    _note_provider()


def post_instrument() -> None:
    """Remember the tracer provider that the configurator left, to tell it from one of the user's own."""
    _note_provider()


def _note_provider() -> None:
    try:
        from opentelemetry import trace

        from grademl_otel.lifecycle import session  # it notes its time when it is made

        session.note_provider(trace.get_tracer_provider())
    except Exception as error:
        warn(f"the tracer provider in place is taken for the user's own: {type(error).__name__}: {error}")
