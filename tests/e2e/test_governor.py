# SPDX-License-Identifier: Apache-2.0
"""Real trainings whose steps are too short to be recorded in full: the windows say what was, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch")

from grademl_otel import semconv
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.sources import Selection, open_source

from ..support.training import Finished, train, train_untraced

STEPS, EVALUATIONS = 1500, 12
SCRIPT = dedent(
    f"""
    import pickle
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Evaluated(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, inputs):
            return self.network(inputs)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    data = TensorDataset(torch.randn({STEPS}, 4), torch.randn({STEPS}, 1))
    held_out = DataLoader(TensorDataset(torch.randn({EVALUATIONS}, 4)))
    evaluated = Evaluated(network)
    for epoch in range(2):
        for inputs, targets in DataLoader(data):
            optimizer.zero_grad()
            loss = ((network(inputs) - targets) ** 2).mean()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            total = sum(evaluated(inputs).item() for (inputs,) in held_out)
        print(epoch, loss.item().hex(), total.hex())
    copy = pickle.loads(pickle.dumps(network))
    print(copy(torch.ones(1, 4)).item().hex(), torch.rand(1).item().hex())
    """
)


@dataclass(frozen=True)
class Governed:
    finished: Finished
    run: Run
    windows: list[dict[str, object]]
    """Attributes of the window spans, in order of time."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("governor") / "tiny.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module", params=["1", "0.01"])
def governed(request: pytest.FixtureRequest, script: Path) -> Governed:
    """The training within the default budget, and within one that nothing can keep to."""
    folder = script.parent / f"budget-{request.param}"
    settings = {"GRADEML_EXPORTER": "file", "GRADEML_BUDGET": request.param}
    finished = train(script, [], folder, settings).ok()
    (store,) = (folder / "runs").iterdir()
    run = build_run(open_source(str(store)).read(Selection()))
    assert run is not None
    spans = run.spans
    windows = [ix for ix in map(int, run.span_ixs) if spans.name(ix) == semconv.WINDOW]
    windows.sort(key=lambda ix: int(spans.end[ix]))
    return Governed(finished, run, [spans.attributes(ix) for ix in windows])


@pytest.fixture(scope="module")
def untraced(script: Path) -> Finished:
    return train_untraced(script, [], script.parent / "untraced").ok()


def test_short_steps_drive_the_level_down_and_the_windows_say_why(governed: Governed) -> None:
    levels = [window[semconv.WINDOW_RECORD_LEVEL] for window in governed.windows]
    assert levels[0] == 0
    assert max(levels) >= 2  # type: ignore[type-var]
    pattern = re.compile(r"own cost [\d.e+]+ % of a [\d.]+ (ms|s) step; budget (1|0\.01) %")
    for window in governed.windows:
        if window[semconv.WINDOW_RECORD_LEVEL]:
            assert pattern.fullmatch(str(window[semconv.WINDOW_RECORD_REASON]))
            first = semconv.window_first_step(window[semconv.WINDOW_NUMBER])  # type: ignore[arg-type]
            assert first >= 48


def test_phases_that_were_not_measured_are_absent(governed: Governed) -> None:
    for window in governed.windows:
        level = window[semconv.WINDOW_RECORD_LEVEL]
        columns = {key.removeprefix(semconv.TABLE_PREFIX) for key in window if ".table." in key}
        if "step" not in columns or window[semconv.WINDOW_STEPS_SO_FAR] == 0:
            continue
        assert ("forward.busy_us" in columns) == (level < 2)  # type: ignore[operator]
        assert ("data.wait.busy_us" in columns) == (level < 3)  # type: ignore[operator]


def test_every_step_is_counted_at_every_level(governed: Governed) -> None:
    complete = governed.run.completeness
    assert (complete.verdict, complete.reasons) == ("complete", [])
    assert complete.steps_measured == complete.steps_expected == 2 * STEPS
    evaluations = (governed.run.steps.flags & semconv.FLAG_EVALUATE) != 0
    assert int(evaluations.sum()) == 2 * EVALUATIONS + 1  # and that of the copy
    epochs = [scope for scope in governed.run.scopes if scope.name == semconv.EPOCH]
    assert [scope.attributes[semconv.STEPS_TOTAL] for scope in epochs] == [STEPS, STEPS]


def test_what_was_not_measured_is_not_judged(governed: Governed) -> None:
    judgement = diagnose(governed.run)
    assert governed.run.reduced
    assert governed.run.completeness.notes
    assert "compute.bound" in {one.rule for one in judgement.abstained}
    assert judgement.verdict is not None
    assert judgement.verdict.id != "compute.bound"


def test_the_training_is_the_same(governed: Governed, untraced: Finished) -> None:
    assert governed.finished.out == untraced.out
    assert governed.finished.err.count("\n") == 1  # where the telemetry went
