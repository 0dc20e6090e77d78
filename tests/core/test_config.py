# SPDX-License-Identifier: Apache-2.0
"""Settings from the environment, the destination they lead to, and the user's OpenTelemetry settings."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from grademl_otel import config, destination, digest, messages
from grademl_otel.config import Settings, disabled
from grademl_otel.destination import decide_destination
from tests.support.nonsense import NONSENSE

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
    assert settings.budget == 1.0
    assert (settings.gpu_interval_s, settings.host_interval_s) == (1.0, 1.0)
    assert (settings.proc_dir, settings.sys_dir) == (Path("/proc"), Path("/sys"))
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
            "GRADEML_SPOOL_BYTES": "2097152",
            "GRADEML_EXIT_WAIT": "0.5",
            "GRADEML_BUDGET": "2.5",
            "GRADEML_DEVICE_TIME": "0",
            "GRADEML_GPU_INTERVAL": "0",
            "GRADEML_HOST_INTERVAL": "2.5",
            "GRADEML_PROC": str(tmp_path),
            "GRADEML_SYS": str(tmp_path.parent),
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
        spool_bytes=2097152,
        exit_wait_s=0.5,
        budget=2.5,
        device_times=False,
        gpu_interval_s=0.0,
        host_interval_s=2.5,
        proc_dir=tmp_path,
        sys_dir=tmp_path.parent,
        run_id=RUN_ID,
        relay_log=tmp_path / "log",
        in_process=True,
    )


@pytest.mark.parametrize("name", [variable.name for variable in config.VARIABLES])
def test_nonsense_is_one_complaint_and_the_default_is_used(name: str) -> None:
    default = Settings.from_env({})
    for value in NONSENSE[name]:
        settings = Settings.from_env({name: value})
        assert settings == default, value
        (complaint,) = settings.complaints
        assert complaint.startswith(f"{name}={value[:9]!r}"[:-1])
        assert "expected" in complaint
        assert complaint.endswith("; the default is used")
        assert len(complaint) < 600


def test_several_faults_are_one_complaint_each() -> None:
    settings = Settings.from_env({name: values[0] for name, values in NONSENSE.items()})
    assert sorted(each.partition("=")[0] for each in settings.complaints) == sorted(NONSENSE)


@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_an_empty_value_is_as_good_as_none(value: str) -> None:
    settings = Settings.from_env(dict.fromkeys(NONSENSE, value))
    assert settings == Settings.from_env({})
    assert settings.complaints == ()


def test_odd_values_that_do_make_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").write_text("")
    settings = Settings.from_env(
        {
            "GRADEML_EXPORTER": " File,OTLP,file, ",
            "GRADEML_STORE": "../elsewhere/./runs of mine",
            "GRADEML_SPOOL_DIR": "~/spool",
            "GRADEML_RING_BYTES": " 1_048_576 ",
            "GRADEML_EXIT_WAIT": "0",
            "GRADEML_IN_PROCESS": "YES",
            "GRADEML_RELAY_LOG": "log",
            "GRADEML_RELAY": "0",
        }
    )
    assert settings.complaints == ()
    assert settings.exporters == ("file", "otlp")
    assert settings.store_dir == tmp_path.parent / "elsewhere" / "runs of mine"
    assert settings.spool_dir == Path.home() / "spool"
    assert (settings.ring_bytes, settings.exit_wait_s, settings.in_process) == (1048576, 0.0, True)
    assert settings.relay_log == tmp_path / "log"


def test_trees_of_a_host_have_the_collectors_names_too(tmp_path: Path) -> None:
    settings = Settings.from_env({"HOST_PROC": "/hostfs/proc", "HOST_SYS": "/hostfs/sys", "GRADEML_SYS": "/"})
    assert (settings.proc_dir, settings.sys_dir) == (Path("/hostfs/proc"), Path("/"))


def test_a_relative_state_folder_is_none() -> None:
    assert Settings.from_env({"XDG_STATE_HOME": "state"}).spool_dir == Settings.from_env({}).spool_dir
    assert Settings.from_env({"XDG_STATE_HOME": "/state"}).spool_dir == Path("/state/grademl")


def test_a_folder_that_cannot_be_written_to_is_nonsense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    environ = {"GRADEML_STORE": str(tmp_path / "runs"), "GRADEML_RELAY_LOG": str(tmp_path / "log")}
    settings = Settings.from_env(environ)
    assert settings == Settings.from_env({})
    assert all("that can be written to" in complaint for complaint in settings.complaints)
    assert len(settings.complaints) == 2


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["GRADEML_EXPORTR"], "no such setting: GRADEML_EXPORTR (did you mean GRADEML_EXPORTER?)"),
        (["GRADEML_HEADER"], "no such setting: GRADEML_HEADER (did you mean GRADEML_HEADERS?)"),
        (["GRADEML_ZZZ"], "no such setting: GRADEML_ZZZ"),
        (["GRADEML_Z1", "GRADEML_Z2", "GRADEML_Z3", "GRADEML_Z4", "GRADEML_Z5"],
         "no such setting: GRADEML_Z1, GRADEML_Z2, GRADEML_Z3, 2 more"),
        (["GRADEML_SOURCE", "GRADEML_HEADERS", "GRADEML_TEST_CACHE", "GRADEML", "XGRADEML_EXPORTR"], None),
    ],
)  # fmt: skip
def test_a_mistyped_name_is_told_once(names: list[str], line: str | None) -> None:
    assert Settings.from_env(dict.fromkeys(names, "secret")).complaints == (() if line is None else (line,))


def test_every_documented_name_is_known() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    names = re.findall(r"^\|(.*?)\|", text, re.MULTILINE)
    documented = re.findall(r"`(GRADEML_[A-Z_]+)`", " ".join(names))
    assert len(documented) > len(config.VARIABLES)
    unknown = [c for c in Settings.from_env(dict.fromkeys(documented, "1")).complaints if "no such" in c]
    assert unknown == []


def test_complaints_are_shown_once_and_each_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = f"a line\n\r\x1b[31m of its own {id(object())} \udcff \u2028 é"
    messages.complain([complaint, complaint])
    messages.complain([complaint])
    err = capsys.readouterr().err
    assert err.count("of its own") == 1
    assert err.splitlines() == [err.removesuffix("\n")]
    assert err.startswith(r"grademl: a line\n\r\x1b[31m of its own")
    assert err.endswith("\\udcff \\u2028 é\n")


class _Odd:
    """A stderr that somebody put there."""

    def write(self, text: str) -> None:
        raise RuntimeError("not today")


@pytest.mark.parametrize("stderr", [None, _Odd()])
def test_a_broken_stderr_is_no_concern_of_the_program(
    stderr: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    messages.warn("nobody hears this")


def test_the_relay_gets_paths_that_hold_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"GRADEML_SPOOL_DIR": "spool", "GRADEML_RELAY_LOG": "", "PATH": "bin"}
    assert config.with_absolute_paths(environ) == {**environ, "GRADEML_SPOOL_DIR": str(tmp_path / "spool")}
    here = digest.destination_digest(environ)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert digest.destination_digest(environ) != here


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    package = Path(config.__file__).parent
    names = {variable.name for variable in config.VARIABLES}
    read = set()
    for source in package.rglob("*.py"):
        read |= set(re.findall(r"\bGRADEML_[A-Z_]+[A-Z]\b", source.read_text(encoding="utf-8")))
    assert read <= names | set(config.READ_ELSEWHERE)
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
        ({"GRADEML_RELAY": "0"}, False),
        ({"GRADEML_RELAY": "maybe"}, False),
        ({"GRADEML_EXPORTER": "none"}, True),
    ],
)
def test_disabled(environ: dict[str, str], expected: bool) -> None:
    assert disabled(environ) is expected


def test_the_probe_finds_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(destination, "DEFAULT_COLLECTOR", listener.getsockname())
        assert not destination.collector_answers()  # bound, but nobody listens
        listener.listen()
        assert destination.collector_answers()
