# SPDX-License-Identifier: Apache-2.0
"""The entry points of `opentelemetry-instrument`: there, and unable to raise."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from grademl_otel import hooks
from grademl_otel.lifecycle import Session, session


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("opentelemetry_pre_instrument", "grademl"),
        ("opentelemetry_post_instrument", "grademl"),
        ("opentelemetry_instrumentor", "grademl_gpu"),
        ("opentelemetry_instrumentor", "grademl_torch"),
        ("opentelemetry_resource_detector", "grademl_accelerator"),
        ("opentelemetry_resource_detector", "grademl_container"),
        ("opentelemetry_resource_detector", "grademl_framework"),
        ("opentelemetry_resource_detector", "grademl_job"),
        ("opentelemetry_resource_detector", "grademl_source"),
    ],
)
def test_entry_points_load(group: str, name: str) -> None:
    (entry,) = [entry for entry in entry_points(group=group) if entry.name == name]
    assert callable(entry.load())


def test_the_provider_of_the_configurator_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    monkeypatch.setattr(session, "provider", None)
    hooks.pre_instrument()
    hooks.post_instrument()
    assert session.provider is provider


def test_an_error_costs_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(self: Session, provider: Any) -> None:
        raise RuntimeError("odd provider")

    monkeypatch.setattr(Session, "note_provider", fail)
    hooks.post_instrument()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "odd provider" in lines[0]
