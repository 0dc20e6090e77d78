# SPDX-License-Identifier: Apache-2.0
"""What the analyzer says of asynchronous devices, from marks to the report's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from grademl_otel import marks, semconv
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.graph import lane_budget, step_breakdown
from grademl_otel.analyzers.graph.device import device_step, is_asynchronous
from grademl_otel.analyzers.graph.exposed import exposed_wait
from grademl_otel.analyzers.model.devices import memory_of
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.model.tables import decode_table
from grademl_otel.analyzers.reporting.document import to_dict
from grademl_otel.analyzers.reporting.of_run import report_of_run
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.units import size

from ..support.mark_script import MS, MarkScript, S
from .test_recording import converted, read, report, resource

STEPS = 100


def training(
    device: str = "cuda:0 H200",
    wait: int = MS,
    lag: int = 30 * MS,
    on_device: tuple[int, int] = (3 * MS, 6 * MS),
    times: bool = True,
) -> MarkScript:
    """Steps of 10 ms on the host; the device begins ``lag`` after the host's forward, without a pause."""
    script = MarkScript()
    script.scope_text(1, semconv.DEVICE, device)
    script.open_scope(2, "epoch", 0, number=0)
    script.scope_int(2, semconv.LOADER_ID, 0)
    script.scope_int(2, semconv.LOADER_WORKERS, 1)
    for step in range(STEPS):
        row, at = 10 + step, step * 10 * MS
        if wait:
            script.phase(
                "data.fetch", at - 9 * MS if step else 0, at + wait, row, (2, step), lane="loader-worker-0"
            )
            script.phase("data.wait", at, at + wait, row, (2, step))
        script.phase("forward", at + wait, at + wait + MS // 2, row)
        script.phase("backward", at + wait + MS // 2, at + 9 * MS, row)
        script.row(row, step, at, at + 10 * MS, flags=marks.DEVICE_LATER if times else 0, pass_serial=2)
        if times:
            first = at + wait + lag
            middle, last = first + on_device[0], first + sum(on_device)
            for name, start, end, host in (
                ("forward", first, middle, at + wait),
                ("backward", middle, last, at + wait + MS // 2),
            ):
                script.add(marks.device_kind(name), start, end, row, y=host, lane="stream-0.0")
            script.add(marks.ROW_DEVICE, last, last, row, x=0)
    script.close_scope(2, "epoch", STEPS * 10 * MS)
    script.close_scope(1, "run", STEPS * 10 * MS)
    return script


def run_of(folder: Path, script: MarkScript) -> Run:
    return read(folder, (resource(), converted(script, 2 * S)))


def test_device_times_stand_beside_those_of_the_host(tmp_path: Path) -> None:
    run = run_of(tmp_path, training())
    found = device_step(run)

    assert found is not None
    steady = step_breakdown(run).steps
    assert (found.steps, found.step_ns) == (steady, steady * 10 * MS)
    assert found.phases == [("backward", steady * 6 * MS), ("forward", steady * 3 * MS)]
    assert found.idle_ns == steady * MS
    assert found.behind.p50 == (1 + 30 + 9 - 10) * MS
    host = {phase.phase: phase.per_step.p50 for phase in step_breakdown(run).phases}
    assert host == {"forward": MS // 2, "backward": 7_500_000, "data.wait": MS, "other": MS}
    assert sum(row.ns for row in lane_budget(run) if row.within is None) == run.end - run.start
    assert run.completeness.verdict == "complete"
    assert run.completeness.conflicts == []


def test_what_the_report_says(tmp_path: Path) -> None:
    run = run_of(tmp_path, training())
    text = report(tmp_path, run)

    assert "host time)" in text
    assert f"On the device (mean of {step_breakdown(run).steps} steps, done 30 ms after the host)" in text
    assert "backward 6.0 ms 60 %" in text
    assert "outside of phases 1.0 ms 10 %" in text
    telemetry = open_source(str(tmp_path / "traces.jsonl")).read(Selection())
    step = to_dict(report_of_run(telemetry, run))["step"]
    assert step["host_time"] is True
    assert step["device"] == {
        "n": step_breakdown(run).steps,
        "step_ns": 10 * MS,
        "idle_ns": MS,
        "behind_p50_ns": 30 * MS,
        "phases": [
            {"phase": "backward", "share": 0.6, "mean_ns": 6 * MS},
            {"phase": "forward", "share": 0.3, "mean_ns": 3 * MS},
        ],
    }


@pytest.mark.parametrize(("device", "host_time"), [("cuda:0 H200", True), ("cpu", False)])
def test_without_device_times(tmp_path: Path, device: str, host_time: bool) -> None:
    run = run_of(tmp_path, training(device, times=False))

    assert is_asynchronous(run) == host_time
    assert device_step(run) is None
    found = exposed_wait(run, 0)
    if host_time:
        assert found is None
    else:  # the thread that waits is the device
        assert found is not None
        assert (found.idle_ns, found.busy_ns, found.unknown_ns) == (found.wait_ns, 0, 0)
    text = report(tmp_path, run)
    assert ("host time" in text) == host_time
    assert "On the device" not in text
    assert "Device memory" not in text


def test_steps_of_which_times_are_lost_are_left_out(tmp_path: Path) -> None:
    script = training()
    lost = 10 + STEPS // 2
    script.marks = [m for m in script.marks if not (m[0] == marks.device_kind("forward") and m[4] == lost)]
    script.marks = [
        (*m[:5], 1, *m[6:]) if m[0] == marks.ROW_DEVICE and m[4] == lost else m for m in script.marks
    ]
    run = run_of(tmp_path, script)
    found = device_step(run)

    assert found is not None
    assert found.steps == step_breakdown(run).steps - 1
    assert dict(found.phases)["forward"] == found.steps * 3 * MS
    assert "1 phase has no device time" in report(tmp_path, run)


# --- Waiting for data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag_ms", [0, 4, 5, 6, 7, 30])
def test_whether_the_device_was_idle_while_the_host_waited(tmp_path: Path, lag_ms: int) -> None:
    """The host waits for the first 4 ms of a step of 10; what it enqueues then takes the device 2 ms."""
    run = run_of(tmp_path, training(wait=4 * MS, lag=lag_ms * MS, on_device=(MS, MS)))
    found = exposed_wait(run, 0)

    assert found is not None
    into_the_next_step = 4 + lag_ms + 2 - 10
    assert found.share == pytest.approx(1 - min(max(into_the_next_step, 0), 4) / 4)
    assert found.n >= 90


def test_waits_in_which_the_device_is_idle_are_held_against_the_loader(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path, training(wait=5 * MS, lag=0, on_device=(MS, 2 * MS))))

    (finding,) = (finding for finding in found.findings if finding.id == "input.loader")
    evidence = {one.signal: one for one in finding.evidence}
    assert evidence["device.idle_in_wait.share"].value == 1.0


def test_waits_count_as_far_as_the_device_is_idle_in_them(tmp_path: Path) -> None:
    """Of 5 ms of waiting in a step of 10 the device works for 2: from earlier steps."""
    found = diagnose(run_of(tmp_path, training(wait=5 * MS, lag=5 * MS, on_device=(MS, MS))))

    (finding,) = (finding for finding in found.findings if finding.id == "input.loader")
    assert finding.gain is not None
    assert finding.gain.fraction == pytest.approx(0.3, abs=0.02)
    assert found.verdict is not None
    assert "30 % of it while the device has nothing to do" in found.verdict.lines[0]


def test_waits_in_which_the_device_works_are_not(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path, training(wait=5 * MS, lag=20 * MS, on_device=(4 * MS, 6 * MS))))

    assert [finding.id for finding in found.findings] == ["compute.bound"]
    assert "input.loader" not in {one.rule for one in found.abstained}
    assert found.verdict is not None
    assert "device" in " ".join(found.verdict.lines)


def test_without_device_times_nothing_is_held_against_the_loader(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path, training(wait=5 * MS, times=False)))

    assert found.findings == []
    assert "input.loader" in {one.rule for one in found.abstained}


def syncing(every: int, launches_after: bool = False, waits: int = 1) -> MarkScript:
    """Steps of 10 ms that begin with 4 ms of waiting; each ``every``-th ends by waiting for the device."""
    script = MarkScript()
    script.scope_text(1, semconv.DEVICE, "cuda:0 H200")
    script.open_scope(2, "epoch", 0, number=0)
    script.scope_int(2, semconv.LOADER_ID, 0)
    script.scope_int(2, semconv.LOADER_WORKERS, 1)
    for step in range(STEPS):
        row, at = 10 + step, step * 10 * MS
        for n in range(waits):
            script.phase(
                "data.wait", at + n * 5 * MS, at + n * 5 * MS + 4 * MS // waits, row, (2, step * waits + n)
            )
            script.phase("forward", at + n * 5 * MS + 4 * MS, at + n * 5 * MS + 4 * MS + MS // 2, row)
        if step % every == 0:
            script.phase("device.sync", at + 9_600_000, at + 9_800_000, row)
        if launches_after:
            script.phase("optimizer", at + 9_800_000, at + 9_900_000, row)
        script.row(row, step, at, at + 10 * MS, pass_serial=2)
    script.close_scope(2, "epoch", STEPS * 10 * MS)
    script.close_scope(1, "run", STEPS * 10 * MS)
    return script


def test_after_a_full_wait_for_the_device_it_is_idle_until_work_is_launched(tmp_path: Path) -> None:
    found = exposed_wait(run_of(tmp_path, syncing(every=1)), 0)

    assert found is not None
    assert (found.share, found.unknown_share, found.told) == (1.0, 0.0, True)
    assert found.wait_ns == found.n * 4 * MS


def test_what_nothing_tells_of_is_unknown_and_not_idle(tmp_path: Path) -> None:
    run = run_of(tmp_path, syncing(every=2))
    found = exposed_wait(run, 0)

    assert found is not None
    assert found.unknown_share == pytest.approx(0.5, abs=0.02)
    assert found.busy_ns == 0
    assert not found.told
    assert (found.share, found.at_most) == (1.0, 1.0)
    reasons = {one.rule: one.missing for one in diagnose(run).abstained}
    assert "is not known of" in reasons["input.loader"]


def test_work_launched_after_the_wait_for_the_device_may_keep_it_busy(tmp_path: Path) -> None:
    assert exposed_wait(run_of(tmp_path, syncing(every=1, launches_after=True)), 0) is None


def test_where_only_sums_of_phases_are_known_their_order_is_not(tmp_path: Path) -> None:
    found = exposed_wait(run_of(tmp_path, syncing(every=1, waits=2)), 0)

    assert found is not None
    assert found.n < STEPS // 2  # those with detail
    assert found.idle_ns == found.n * 2 * MS  # the first of two waits; work is launched between them
    assert not found.told


# --- Memory -------------------------------------------------------------------------------------------------


def test_memory(tmp_path: Path) -> None:
    script = training()
    closing = script.marks[-2:]
    del script.marks[-2:]
    script.add(marks.DEVICE_MEMORY, S - MS, S - MS, 1, x=3 << 30, y=5 << 30, z=4 << 30)
    script.phase("forward", S, S + MS, 999)
    script.row(999, STEPS, S, S + 2 * MS, pass_serial=2)
    script.marks += closing
    run = run_of(tmp_path, script)

    (memory,) = run.memory
    assert (memory.rank, memory.device) == (0, 0)
    assert (memory.allocated, memory.reserved, memory.peak) == (3 << 30, 5 << 30, 4 << 30)
    assert "at most 4.0 GiB allocated, 5.0 GiB reserved at last" in report(tmp_path, run)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {semconv.DEVICE_MEMORY_INDEX: [0]},
        {semconv.DEVICE_MEMORY_PEAK: [1, 2]},
        {semconv.DEVICE_MEMORY_PEAK: "x"},
        {semconv.DEVICE_MEMORY_PEAK: [-1]},
    ],
)
def test_memory_that_makes_no_sense(said: dict[str, object]) -> None:
    whole: dict[str, object] = {
        semconv.DEVICE_MEMORY_INDEX: [0],
        semconv.DEVICE_MEMORY_ALLOCATED: "[1]",  # as one API of Jaeger gives arrays
        semconv.DEVICE_MEMORY_RESERVED: 2,  # and one element
        semconv.DEVICE_MEMORY_PEAK: [3],
    }
    attributes = whole | said if semconv.DEVICE_MEMORY_PEAK in said else said or whole
    part = decode_table({semconv.TABLE_VERSION: 1, **attributes}, 0, 0)

    expected = [(0, 0, 1, 2, 3)] if attributes == whole else []
    found = memory_of([part])
    assert [(m.rank, m.device, m.allocated, m.reserved, m.peak) for m in found] == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (4300, "4.2 KiB"),
        (1 << 20, "1.0 MiB"),
        (150 << 30, "150 GiB"),
        (3 << 42, "12.0 TiB"),
    ],
)
def test_sizes_in_words(number: int, text: str) -> None:
    assert size(number) == text
