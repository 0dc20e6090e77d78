# SPDX-License-Identifier: Apache-2.0
"""`grademl doctor`: what it says of sources of each kind, of what is recorded, of this machine."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as grademl
from grademl_otel.analyzers.examination import here, trial
from grademl_otel.analyzers.examination.recorded import IN_PART, NO, NOT_HERE, YES, signals
from grademl_otel.analyzers.model.run import build_run
from grademl_otel.analyzers.reporting.doctor_document import DOCTOR_SCHEMA, DoctorDocument
from grademl_otel.analyzers.sources import Selection, open_source
from tests.support import fake_jaeger, fake_tempo
from tests.support.fake_jaeger import FakeJaeger
from tests.support.fake_tempo import FakeTempo
from tests.support.synthetic import S, Simulated, Training, lines, simulate

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, and no setting of the user's."""
    for name in [name for name in os.environ if name.startswith(("GRADEML_", "OTEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, document, and what was written to stderr."""
    code = grademl(["doctor", *arguments, "--json"])
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema"] == DOCTOR_SCHEMA
    return code, document, err


def store(tmp_path: Path, **fields: Any) -> tuple[Simulated, str]:
    sim = simulate(Training(run_id=secrets.token_hex(16), start=time.time_ns() - 300 * S, **fields))
    return sim, str(sim.write_store(tmp_path))


def states(document: Mapping[str, Any]) -> dict[str, str]:
    return {signal["what"]: signal["state"] for signal in document["run"]["recorded"]}


def of_run(sim: Simulated, tmp_path: Path, *without: str) -> dict[str, tuple[str, str, str | None]]:
    """Return what is said of a run whose spans lack the attributes that begin with one of ``without``."""
    for _, span in sim.spans:
        span["attributes"] = [a for a in span["attributes"] if not a["key"].startswith(tuple(without) or "-")]
    path = tmp_path / "traces.jsonl"
    path.write_bytes(lines(sim.training, sim.spans))
    run = build_run(open_source(str(path)).read(Selection()))
    assert run is not None
    return {one.what: (one.state, one.detail, one.how_to_get) for one in signals(run)}


# --- Files ------------------------------------------------------------------------------------------------


def test_a_healthy_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim, path = store(tmp_path, ranks=2)
    code, document, err = doctor(capsys, path)
    assert (code, err, document["problems"]) == (0, "", [])
    assert document["source"]["kind"] == "files"
    assert document["source"]["limits"]["files"] == "1"
    assert document["verdict"] == "complete"
    assert [run["run"] for run in document["runs"]] == [sim.training.run_id]
    assert document["spans"]["count"] == len(sim.spans)
    names = {one["name"]: one["count"] for one in document["spans"]["names"]}
    assert names[sc.RUN] == 2
    assert names[sc.STEP] == sum(1 for _, span in sim.spans if span["name"] == sc.STEP)
    assert states(document) == {
        "steps": YES, "phases": YES, "steps in detail": YES, "data loading": YES, "device times": NOT_HERE,
        "collectives": NO, "marks": YES, "spans": YES,
    }  # fmt: skip
    assert document["here"] is None
    assert all(
        signal["how_to_get"] for signal in document["run"]["recorded"] if signal["state"] in (NO, IN_PART)
    )


def test_its_text_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim, path = store(tmp_path)
    assert grademl(["doctor", path]) == 0
    out = capsys.readouterr().out
    for part in (
        sim.training.run_id[:12],
        "data      complete",
        "yes       steps: 40 training steps",
        "yes       steps in detail: all 40 training steps\n",
        "no problem",
    ):
        assert part in out
    assert max(map(len, out.splitlines())) <= 110


def test_nothing_there_and_nothing_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grademl(["doctor", str(tmp_path / "absent.jsonl")]) in (2, 3)
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    code, document, err = doctor(capsys, str(tmp_path / "empty"))
    assert code in (3, 5)
    assert err.startswith("grademl: ")
    (tmp_path / "letter.json").write_text("Dear reader")
    code, document, err = doctor(capsys, str(tmp_path / "letter.json"))
    assert code == 3
    assert len(document["problems"]) >= 1
    assert document["runs"] == []


def test_strict_ends_with_4_when_data_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = simulate(Training(ranks=2))
    path = tmp_path / "traces.jsonl"
    path.write_bytes(lines(sim.training, [(rank, span) for rank, span in sim.spans if rank == 0]))
    code, document, _ = doctor(capsys, str(path))
    assert (code, document["verdict"]) == (0, "incomplete")
    assert document["incomplete_because"]
    assert doctor(capsys, str(path), "--strict")[0] == 4


def test_traces_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = simulate(Training())
    foreign = [
        (rank, {**span, "attributes": []})
        for rank, span in sim.spans
        if span["name"] in (sc.STEP, sc.FORWARD)
    ]
    text = lines(sim.training, foreign).replace(sc.RUN_ID.encode(), b"some.run.id")
    path = tmp_path / "traces.jsonl"
    path.write_bytes(text)
    code, document, _ = doctor(capsys, str(path))
    assert code == 0
    assert document["services"] == ["trainer"]
    assert document["run"] is None
    assert document["runs"] == []
    assert document["verdict"] in ("unverifiable", "incomplete")


# --- What is recorded -------------------------------------------------------------------------------------


def test_phases_that_no_hook_saw(tmp_path: Path) -> None:
    said = of_run(simulate(Training()), tmp_path, "grademl.table.forward", "grademl.table.optimizer")
    state, detail, how = said["phases"]
    assert state == IN_PART
    assert detail.endswith("not forward, optimizer")
    assert how is not None and "docs/versions.md" in how  # noqa: PT018


def test_loaders_whose_workers_were_not_seen(tmp_path: Path) -> None:
    said = of_run(simulate(Training()), tmp_path, "grademl.table.data.fetch")
    assert said["data loading"][:2] == (IN_PART, "waits, not what the workers did")


def test_a_device_whose_times_are_missing(tmp_path: Path) -> None:
    said = of_run(simulate(Training(device="NVIDIA H100")), tmp_path)
    state, detail, how = said["device times"]
    assert state == NO
    assert "NVIDIA H100" in detail
    assert "GRADEML_DEVICE_TIME" in str(how)


def test_collectives_that_were_recorded(tmp_path: Path) -> None:
    said = of_run(simulate(Training(ranks=2, buckets=2)), tmp_path)
    assert said["collectives"][0] == YES
    assert int(said["collectives"][1].split()[0].replace(",", "")) > 0
    assert of_run(simulate(Training()), tmp_path)["collectives"][0] == NOT_HERE


def test_marks_that_were_lost(tmp_path: Path) -> None:
    said = of_run(simulate(Training(tracer_dropped=1234)), tmp_path)
    assert said["marks"][0] == IN_PART
    assert "1,234" in said["marks"][1]


def test_spans_that_were_lost_on_the_way(tmp_path: Path) -> None:
    sim = simulate(Training())
    gone = [ix for ix, (_, span) in enumerate(sim.spans) if span["name"] == sc.BACKWARD][:7]
    for ix in reversed(gone):
        del sim.spans[ix]
    state, detail, _ = of_run(sim, tmp_path)["spans"]
    assert state == IN_PART
    assert detail == f"{len(sim.spans):,} of {len(sim.spans) + 7:,} that were sent are here"


def test_a_run_without_steps(tmp_path: Path) -> None:
    sim = simulate(Training(epochs=0))
    said = of_run(sim, tmp_path)
    assert said["steps"][0] == NO
    assert "grademl_otel.step()" in str(said["steps"][2])


# --- Servers ----------------------------------------------------------------------------------------------


def test_a_jaeger(capsys: pytest.CaptureFixture[str]) -> None:
    sim = simulate(Training(run_id=secrets.token_hex(16), start=time.time_ns() - 300 * S))
    with fake_jaeger.serve(FakeJaeger(sim.otlp_lines())) as server:
        code, document, err = doctor(capsys, f"jaeger://127.0.0.1:{server.port}")
    assert (code, err, document["problems"]) == (0, "", [])
    assert document["source"]["kind"] == "Jaeger"
    assert document["source"]["api"]
    assert document["verdict"] == "complete"
    assert [run["run"] for run in document["runs"]] == [sim.training.run_id]


def test_a_tempo(capsys: pytest.CaptureFixture[str]) -> None:
    sim = simulate(Training(run_id=secrets.token_hex(16), start=time.time_ns() - 300 * S))
    server = FakeTempo(
        sim.otlp_lines(), metrics=b'tempo_discarded_spans_total{reason="trace_too_large",tenant="a"} 9\n'
    )
    with fake_tempo.serve(server):
        code, document, err = doctor(capsys, server.url)
        assert (code, err, document["problems"]) == (0, "", [])
        assert grademl(["doctor", server.url]) == 0
        text = capsys.readouterr().out
    assert (document["source"]["kind"], document["source"]["version"]) == ("Tempo", "3.0.3")
    assert document["source"]["clock"]["error_ns"] >= 500_000_000
    assert any(note.startswith("9 spans were discarded") for note in document["notes"])
    assert "is        Tempo 3.0.3" in text
    assert "as far as can be seen" in text


def test_an_empty_server_and_one_that_has_traces_of_others_only(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_tempo.serve(FakeTempo()) as server:
        code, document, err = doctor(capsys, server.url)
        assert (code, document["problems"]) == (5, [])
        assert err.count("\n") == 1
        sims = [simulate(Training(service=name, start=time.time_ns() - 300 * S)) for name in ("shop", "till")]
        spans = [
            lines(sim.training, [(0, {**s, "attributes": []}) for _, s in sim.spans[:9]]) for sim in sims
        ]
        server.lines = b"".join(spans).replace(sc.RUN_ID.encode(), b"some.run.id")
        code, document, err = doctor(capsys, server.url)
        assert (code, document["services"], document["spans"]) == (0, ["shop", "till"], None)


@pytest.mark.parametrize("scheme", ["jaeger", "tempo", "http"])
def test_a_server_that_is_not_there(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_tempo.serve(FakeTempo()) as server:
        port = server.port
    code, document, err = doctor(capsys, f"{scheme}://127.0.0.1:{port}")
    assert code == 3
    assert len(document["problems"]) == 1
    assert "connection refused" in document["problems"][0]
    assert err == f"grademl: {document['problems'][0]}\n"


@pytest.mark.parametrize("scheme", ["jaegers", "jaeger+grpcs", "https", "tempos"])
def test_a_file_that_holds_no_certificate_is_a_usage_error(
    scheme: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    assert grademl(["doctor", f"{scheme}://127.0.0.1:1", "--ca", str(tmp_path / "none.pem")]) == 2
    assert "no certificate in it" in capsys.readouterr().err
    monkeypatch.setenv("GRADEML_CLIENT_CERT", str(tmp_path / "none.pem"))
    assert grademl(["doctor", f"{scheme}://127.0.0.1:1"]) == 2
    assert "no certificate and key in it" in capsys.readouterr().err


def test_a_tenant_is_asked_for_and_no_secret_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    secret = secrets.token_hex(8)
    with fake_tempo.serve(FakeTempo(tenant="other")) as server:
        code, document, err = doctor(capsys, server.url)
        assert code == 3
        assert "X-Scope-OrgID" in document["problems"][0]
        server.tenant = None
        server.intercept = lambda path: (403, "text/plain", b"forbidden") if "search" in path else None
        arguments = [server.url, "--header", f"Authorization=Bearer {secret}"]
        code, document, err = doctor(capsys, *arguments)
        assert code == 3
        grademl(["doctor", *arguments, "--debug"])
    out = "".join(capsys.readouterr())
    assert secret not in out + err + json.dumps(document)


# --- This machine -----------------------------------------------------------------------------------------


def test_recording_works_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run: opentelemetry-instrument, the relay, the file store, read back."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    before = sorted(os.listdir())
    code, document, err = doctor(capsys)
    assert document["problems"] == []
    found = {check["what"]: check for check in document["here"]}
    assert list(found) == [
        "command",
        "packages",
        "analyzer",
        "entry points",
        "PyTorch",
        "destination",
        "file store",
        "trial",
    ]
    assert {check["state"] for check in document["here"]} <= {here.OK, here.NOTE}
    assert found["trial"]["state"] == here.OK
    assert found["trial"]["detail"].startswith("20 steps were recorded and read back")
    assert code == 5, "there is no run here yet"
    assert "no runs" in err
    assert sorted(os.listdir()) == before, "nothing is left behind"


def test_the_local_runs_are_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulate(Training())
    sim.write_store(Path("grademl-runs"))
    monkeypatch.setattr(
        "grademl_otel.analyzers.examination.examine.record",
        lambda environ: here.Check("trial", here.OK, "as if"),
    )
    code, document, _ = doctor(capsys)
    assert code == 0
    assert document["here"][-1]["detail"] == "as if"
    assert [run["run"] for run in document["runs"]] == [sim.training.run_id]
    grademl(["doctor"])
    text = capsys.readouterr().out
    assert text.index("1 file of OTLP JSON") < text.index("recording here"), "it is a note on the source"
    monkeypatch.setenv("GRADEML_SOURCE", str(tmp_path / "here" / "grademl-runs"))
    assert doctor(capsys)[1]["here"] is None


@pytest.mark.parametrize(
    ("environ", "what", "says"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "settings", "OTEL_SDK_DISABLED"),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "a,grademl_torch"}, "settings", "OTEL_PYTHON_DISABLED"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, "destination", "nowhere"),
        ({"GRADEML_EXPORTER": "file"}, "file store", "grademl-runs is no folder"),
    ],
)
def test_what_keeps_recording_from_working(environ: dict[str, str], what: str, says: str) -> None:
    Path("grademl-runs").write_text("a file in the way")
    found = {check.what: check for check in here.checks(environ)}
    assert found[what].state == here.BAD
    assert says in found[what].detail
    assert found[what].how_to_fix


def test_what_is_bad_here_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    code, document, err = doctor(capsys)
    assert code == 3
    assert "OTEL_SDK_DISABLED" in err
    assert "trial" not in [check["what"] for check in document["here"]]


@pytest.mark.parametrize(("module", "state"), [("no_such_module", here.NOTE), ("json", here.OK)])
def test_gpus_with_a_driver_need_a_package(
    module: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("NVIDIA", tmp_path, "nvidia-ml-py", module, "pip install it"),
            ("AMD", tmp_path / "no driver", "amdsmi", module, "")]  # fmt: skip
    monkeypatch.setattr(here, "_GPUS", rows)
    (check,) = [check for check in here.checks({}) if check.what == "GPUs"]
    assert check.state == state
    assert "NVIDIA" in check.detail
    assert check.how_to_fix == ("pip install it" if state == here.NOTE else None)


def test_settings_that_make_no_sense_and_missing_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = here.checks({"GRADEML_BUDGET": "much", "GRADEML_EXPORTER": "file"})
    assert [check.state for check in found if "GRADEML_BUDGET" in check.detail] == [here.NOTE]
    monkeypatch.setattr(here, "_version", lambda package: None)
    monkeypatch.setattr(here, "instrument_command", lambda: None)
    bad = {check.what for check in here.checks({}) if check.state == here.BAD}
    assert bad == {"command", "packages"}
    monkeypatch.setattr(here, "_version", lambda package: "2.1.0")
    assert {check.what for check in here.checks({}) if check.state == here.BAD} == {"command", "PyTorch"}


def test_a_trial_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "opentelemetry-instrument"
    broken.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such distro')\n")
    broken.chmod(0o755)
    monkeypatch.setattr(trial, "instrument_command", lambda: str(broken))
    check = trial.record(os.environ)
    assert check.state == here.BAD
    assert check.detail == "it ended with 1: no such distro"
    broken.write_text(f"#!{sys.executable}\n")
    monkeypatch.setattr(trial, "_SETTLES_S", 0.0)
    assert "nothing was written" in trial.record(os.environ).detail
    broken.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    monkeypatch.setattr(trial, "_TIMEOUT_S", 0.5)
    assert "did not end" in trial.record(os.environ).detail


# --- Documentation ----------------------------------------------------------------------------------------


def test_every_key_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [name for name in DoctorDocument.__dataclass_fields__ if f"`{name}`" not in text] == []
