# SPDX-License-Identifier: Apache-2.0
"""Settings from the environment, the destination they lead to, and the user's OpenTelemetry settings."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from grademl_otel import config
from grademl_otel.config import Settings, decide_destination, disabled

RUN_ID = "0123456789abcdef0123456789abcdef"


def never() -> bool:
    raise AssertionError("no probe is wanted here")


def test_defaults_with_an_empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({})
    assert settings.exporters is None
    assert settings.store_dir == tmp_path / "grademl-runs"
    assert settings.ring_dir is None
    assert settings.ring_bytes == 2 * 1024 * 1024
    assert settings.spool_dir.parts[-1] == "grademl"
    assert settings.exit_wait_s == 2.0
    assert settings.run_id is None
    assert settings.relay_log is None
    assert settings.in_process is False


def test_every_setting_is_read(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {
            "GRADEML_EXPORTER": "otlp, file",
            "GRADEML_STORE": str(tmp_path / "store"),
            "GRADEML_RING_DIR": str(tmp_path / "rings"),
            "GRADEML_RING_BYTES": "1048576",
            "GRADEML_SPOOL_DIR": str(tmp_path / "spool"),
            "GRADEML_EXIT_WAIT": "0.5",
            "GRADEML_RUN_ID": "01234567-89ab-cdef-0123-456789ABCDEF",
            "GRADEML_RELAY_LOG": str(tmp_path / "log"),
            "GRADEML_IN_PROCESS": "1",
        }
    )
    assert settings == Settings(
        exporters=("file", "otlp"),
        store_dir=tmp_path / "store",
        ring_dir=tmp_path / "rings",
        ring_bytes=1048576,
        spool_dir=tmp_path / "spool",
        exit_wait_s=0.5,
        run_id=RUN_ID,
        relay_log=tmp_path / "log",
        in_process=True,
    )


@pytest.mark.parametrize(
    ("name", "value", "attribute"),
    [
        ("GRADEML_EXPORTER", "jaeger", "exporters"),
        ("GRADEML_EXPORTER", "none,file", "exporters"),
        ("GRADEML_RING_BYTES", "many", "ring_bytes"),
        ("GRADEML_RING_BYTES", "12", "ring_bytes"),
        ("GRADEML_EXIT_WAIT", "soon", "exit_wait_s"),
        ("GRADEML_EXIT_WAIT", "-1", "exit_wait_s"),
        ("GRADEML_EXIT_WAIT", "nan", "exit_wait_s"),
        ("GRADEML_RUN_ID", "my run", "run_id"),
        ("GRADEML_RUN_ID", "0" * 32, "run_id"),
        ("GRADEML_IN_PROCESS", "perhaps", "in_process"),
    ],
)
def test_nonsense_costs_one_line_and_the_default_is_used(
    name: str, value: str, attribute: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.from_env({name: value})
    assert getattr(settings, attribute) == getattr(Settings.from_env({}), attribute)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert name in lines[0]
    assert value in lines[0]
    assert "expected" in lines[0]


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    package = Path(config.__file__).parent
    names = {variable.name for variable in config.VARIABLES}
    read = set()
    for source in package.rglob("*.py"):
        read |= set(re.findall(r"\bGRADEML_[A-Z_]+\b", source.read_text(encoding="utf-8")))
    assert read <= names
    assert len(names) == len(config.VARIABLES)
    assert all(variable.default and variable.meaning for variable in config.VARIABLES)


@pytest.mark.parametrize(
    ("environ", "collector", "exporters"),
    [
        ({}, False, ("file",)),
        ({}, True, ("file", "otlp")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, None, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, None, ("otlp",)),
        ({"GRADEML_EXPORTER": "file", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, None, ("file",)),
        ({"GRADEML_EXPORTER": "file,otlp"}, None, ("file", "otlp")),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}, False, ("file",)),
    ],
)
def test_destination(environ: dict[str, str], collector: bool | None, exporters: tuple[str, ...]) -> None:
    probe = never if collector is None else lambda: bool(collector)
    destination = decide_destination(Settings.from_env(environ), environ, probe=probe)
    assert destination.exporters == exporters
    assert (destination.traces, destination.metrics, destination.through_provider) == (True, True, False)
    assert not destination.nowhere


@pytest.mark.parametrize(
    ("environ", "foreign"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp,zipkin"}, False),
        ({}, True),
    ],
)
def test_a_users_own_exporter_or_provider_takes_the_spans(environ: dict[str, str], foreign: bool) -> None:
    destination = decide_destination(Settings.from_env(environ), environ, foreign, never)
    assert destination.through_provider
    assert destination.exporters == ()
    assert not destination.nowhere


def test_our_own_exporter_setting_wins_over_a_users_provider() -> None:
    environ = {"GRADEML_EXPORTER": "file", "OTEL_TRACES_EXPORTER": "console"}
    destination = decide_destination(Settings.from_env(environ), environ, True, never)
    assert destination.exporters == ("file",)
    assert not destination.through_provider


def test_none_of_a_signal_means_none_of_it() -> None:
    environ = {"OTEL_TRACES_EXPORTER": "none", "GRADEML_EXPORTER": "file"}
    destination = decide_destination(Settings.from_env(environ), environ)
    assert (destination.traces, destination.metrics) == (False, True)
    environ["OTEL_METRICS_EXPORTER"] = "none"
    assert decide_destination(Settings.from_env(environ), environ).nowhere


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_SDK_DISABLED": "true"}, True),
        ({"OTEL_SDK_DISABLED": " TRUE "}, True),
        ({"OTEL_SDK_DISABLED": "false"}, False),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "requests , grademl_torch"}, True),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, True),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "torch"}, False),
        ({"GRADEML_RELAY": "1"}, True),
        ({"GRADEML_EXPORTER": "none"}, True),
    ],
)
def test_disabled(environ: dict[str, str], expected: bool) -> None:
    assert disabled(environ) is expected


def test_the_probe_finds_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(config, "DEFAULT_COLLECTOR", listener.getsockname())
        assert not config.collector_answers()  # bound, but nobody listens
        listener.listen()
        assert config.collector_answers()
