# SPDX-License-Identifier: Apache-2.0
"""What a program may ask of PyTorch, asked twice: by the program as it is, and by the same one recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.needed import cannot_be_had
from tests.support.rawspans import RawSpan, read_lines

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "support" / "unchanged_program.py"
STEPS = 200
HANGS_S = 900
"""Far more than both take side by side on a machine that does much else."""

LOOPS = (
    *(
        "convolutions",
        "dropout_and_evaluation",
        "recurrent",
        "transformer",
        "two_networks_against_each_other",
    ),
    *("penalty_on_gradients", "accumulation", "mixed_precision_and_skipped_steps", "closures"),
    *("activation_checkpointing", "optimizers_inside_the_backward", "averaged_weights"),
    *("random_data_of_workers", "rewards_without_a_loader", "a_compiled_module", "a_compiled_step"),
)
MODULES = (
    *("copies", "pickles", "saved", "scripts", "symbolic_graphs", "exported", "functions_of_functions"),
    *("quantized", "names_of_functions", "surroundings"),
)
DYNAMO = (
    *("a_module", "a_module_in_place", "a_module_in_one_graph", "functions_in_one_graph"),
    *(
        "a_method_and_options",
        "functions_as_they_come_back",
        "many_modules",
        "blocks_of_a_module",
        "breaks_in_a_module",
    ),
    *("modules_with_hooks", "other_shapes", "the_limit_of_compilations", "explained"),
)
STEPS_OF_DYNAMO = (
    *("breaks_in_a_function", "a_whole_step", "gradients_by_hand"),
    "the_step_of_an_optimizer",
)
ERRORS = (
    *("in_a_forward", "of_shapes", "of_arguments", "in_a_backward", "in_hooks", "in_loaders", "in_a_closure"),
    *("of_checkpoints", "in_compilations", "raised_again"),
)


class Both(NamedTuple):
    """What the program saw, by section and name, and what was recorded of it."""

    plain: dict[tuple[str, str], Any]
    recorded: dict[tuple[str, str], Any]
    spans: list[RawSpan]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("unchanged")
    environ = training.clean_environ(folder, {"GRADEML_EXPORTER": "file", "GRADEML_BUDGET": "100"})
    environ["GRADEML_RING_DIR"] = str(folder)
    environ["PYTHONPATH"] = os.pathsep.join([str(PROGRAM.parents[2]), environ.get("PYTHONPATH", "")])
    running = [
        subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        for command in ([sys.executable, str(PROGRAM)], training.traced_command(PROGRAM))
    ]
    try:
        outputs = [program.communicate(timeout=HANGS_S)[0] for program in running]
    finally:
        for program in running:
            program.kill()
            program.wait()
    assert [program.returncode for program in running] == [0, 0]
    plain, recorded = map(_seen, outputs)
    (store,) = folder.rglob("traces.jsonl")
    return Both(plain, recorded, read_lines(store))


def _seen(output: str) -> dict[tuple[str, str], Any]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('["')]
    return {(section, name): value for section, name, value in lines}


def answers(both: Both, section: str, name: str) -> tuple[Any, Any]:
    """What the program saw, and the recorded one; skipped where this PyTorch cannot do what is asked."""
    plain, recorded = both.plain[section, name], both.recorded[section, name]
    if isinstance(plain, dict) and "cannot" in plain:
        assert recorded == plain
        cannot_be_had(f"PyTorch {torch.__version__} cannot do it: {plain['cannot']}")
    return plain, recorded


def test_everything_was_asked_of_both(both: Both) -> None:
    asked = [("loops", LOOPS), ("modules", MODULES), ("dynamo", DYNAMO), ("errors", ERRORS)]
    asked += [("dynamo of steps", STEPS_OF_DYNAMO), ("warnings", ("of_the_user", "of_torch"))]
    asked += [("hooks", ("in_their_order", "that_change_results"))]
    expected = {(section, name) for section, names in asked for name in names}
    assert set(both.plain) == set(both.recorded) == expected


def test_it_was_recorded(both: Both) -> None:
    (run,) = [span for span in both.spans if span.name == semconv.RUN]
    # Every fourth batch is a step where gradients are accumulated.
    assert run[semconv.STEPS_TOTAL] >= STEPS * (len(LOOPS) - 1) + STEPS // 4
    compiled = [span for span in both.spans if span.name == semconv.COMPILE]
    assert {"Net.forward", "Sequential.forward", "step"} <= {
        span[semconv.COMPILE_FUNCTION] for span in compiled
    }
    again = [span for span in compiled if span[semconv.COMPILE_AGAIN]]
    assert any("size mismatch" in span[semconv.COMPILE_REASON] for span in again)


@pytest.mark.parametrize("name", LOOPS)
def test_losses_states_and_random_streams_are_bit_equal(both: Both, name: str) -> None:
    plain, recorded = answers(both, "loops", name)
    assert recorded == plain


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_what_they_were(both: Both, name: str) -> None:
    plain, recorded = answers(both, "modules", name)
    assert recorded == plain


@pytest.mark.parametrize("name", DYNAMO)
def test_dynamo_compiles_the_same(both: Both, name: str) -> None:
    """Graphs, frames, breaks and their reasons, results."""
    plain, recorded = answers(both, "dynamo", name)
    assert recorded == plain


@pytest.mark.parametrize("name", STEPS_OF_DYNAMO)
def test_compiled_steps_have_the_same_graphs_and_no_more_breaks(both: Both, name: str) -> None:
    """Dynamo does not look into the hooks of an optimizer, and says so where it broke anyway."""
    plain, recorded = answers(both, "dynamo of steps", name)
    number, graphs, _, breaks, results = plain
    recorded_number, recorded_graphs, _, recorded_breaks, recorded_results = recorded
    assert (recorded_number, recorded_graphs, recorded_results) == (number, graphs, results)
    assert sum(recorded_breaks.values()) <= sum(breaks.values())


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_the_same_text_and_traceback(both: Both, name: str) -> None:
    plain, recorded = answers(both, "errors", name)
    assert recorded == plain


@pytest.mark.parametrize("name", ["of_the_user", "of_torch"])
def test_warnings_blame_the_same_lines(both: Both, name: str) -> None:
    plain, recorded = answers(both, "warnings", name)
    assert plain
    assert recorded == plain


@pytest.mark.parametrize("name", ["in_their_order", "that_change_results"])
def test_hooks_of_the_user_run_as_before(both: Both, name: str) -> None:
    plain, recorded = answers(both, "hooks", name)
    assert recorded == plain
