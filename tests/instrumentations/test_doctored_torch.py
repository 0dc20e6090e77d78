# SPDX-License-Identifier: Apache-2.0
"""A torch in which something is missing or looks different: that hook is off, in one line, the rest goes on.

What the hooks need is not listed by hand: the names that their modules import from torch are read from their
source, what they replace is noted while they are set. Each of it is taken away once while they are set.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from grademl_otel import semconv
from grademl_otel.instrumentations import torch as hooks
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session
from tests.support.listwriter import ListTransport, ListWriter

PHASES_OF = {
    "forward": {semconv.FORWARD},
    "functions": set(),
    "training": {semconv.OPTIMIZER},
    "backward": {semconv.BACKWARD},
    "gradients": {semconv.ZERO_GRAD, semconv.BACKWARD},
    "data": {semconv.DATA_WAIT, semconv.DATA_FETCH, semconv.DATA_COLLATE},
    "worker": {semconv.DATA_WAIT, semconv.DATA_FETCH, semconv.DATA_COLLATE},
    "checkpoint": {semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD},
    "cuda": set(),
    "collector": set(),
    "devicecalls": set(),
    "compile": set(),
    "safetensors": set(),
    "distributed_checkpoint": set(),
    "collectives": set(),
    "implicitwaits": set(),
    "recompute": {semconv.RECOMPUTE},
    "stateful": set(),
    "movers": set(),
    "generation": set(),
}
"""The modules that hook, and what a training as the one below may lose without each."""
EVERYTHING = {
    semconv.DATA_WAIT, semconv.DATA_FETCH, semconv.DATA_COLLATE, semconv.FORWARD, semconv.BACKWARD,
    semconv.OPTIMIZER, semconv.ZERO_GRAD, semconv.RECOMPUTE, semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD,
}  # fmt: skip
DISPENSABLE = (
    *("checkpoint: torch.save", "checkpoint: torch.load"),
    *(
        f"distributed_checkpoint: torch.distributed.checkpoint.{name}"
        for name in (
            *("save", "async_save", "load", "save_state_dict", "load_state_dict"),
            *("state_dict_saver.save_state_dict", "state_dict_loader.load_state_dict"),
        )
    ),
    "compile: torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reason",
    *("collectives: ProcessGroup.", "cuda: CUDAGraph.", "movers: "),
)
"""How parts begin that a program cannot call either where they are missing, or that have other names, too."""
CORE = ("Module", "Optimizer", "Parameter", "DataLoader")
"""Without these it would be no torch."""
FIXED = {
    *("data: DataLoader.__iter__", "stateful: StatefulDataLoader.__iter__"),
    *("recompute: CheckpointFunction.forward", "recompute: CheckpointFunction.backward"),
}
"""Called by Python and by autograd, which know one way."""
CHECKED = "_next_data"
"""Its parameters are looked at before it is wrapped, as it is called for each batch."""
FOUND_BY = "grademl_otel.instrumentations.torch"
FOLDER = Path(hooks.__file__).parent


def test_each_module_that_hooks_is_here() -> None:
    assert {*hooks._AT_ONCE, *hooks._LATER.values()} == set(PHASES_OF)


# --- What the hooks need ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Something of torch or another library, that a hook needs."""

    of: str
    """The hook's module."""
    owner: Any
    name: str

    def __str__(self) -> str:
        where = getattr(self.owner, "__qualname__", None) or self.owner.__name__
        return f"{self.of}: {where}.{self.name}"


def _imports(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The (module, name) of all that the source of ``module`` imports from others' packages by name."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in _OTHERS:
            for alias in node.names:
                yield node.module, alias.name


_OTHERS = ("torch", "torchdata", "safetensors")


def _imported_parts() -> list[Part]:
    found = []
    for name in PHASES_OF:
        if _can_be_had(name):
            for each in (name, *sorted(_imports_of_ours(name))):
                for owner, needed in _imports(importlib.import_module(f"{FOUND_BY}.{each}")):
                    where = importlib.import_module(owner)
                    if needed not in CORE and not isinstance(getattr(where, needed), ModuleType):
                        found.append(Part(name, where, needed))
    return found


@cache
def _can_be_had(name: str) -> bool:
    """Whether the library that the hook is for is installed here."""
    paths = [path for path, each in hooks._LATER.items() if each == name]
    for path in paths:
        try:
            importlib.import_module(path)
            return True
        except ImportError:
            continue
    return not paths


@contextmanager
def noting(found: list[tuple[Part, Any]]) -> Iterator[None]:
    """Note what is replaced, by whose hook."""
    current = ""
    set_, replace = hooks._set, Patches.replace

    def noted_set(name: str, patches: Patches) -> None:
        nonlocal current
        current = name
        set_(name, patches)

    def noted(self: Patches, owner: Any, name: str, value: Any, until: int | None = None) -> None:
        if current:
            found.append((Part(current, owner, name), value))
        replace(self, owner, name, value, until)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hooks, "_set", noted_set)
        patched.setattr(Patches, "replace", noted)
        yield


# --- A torch without them --------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SDK_DISABLED", "GRADEML_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADEML_EXPORTER", "file")
    monkeypatch.setenv("GRADEML_BUDGET", "100")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(session, "_refused", False)
    monkeypatch.setattr(session, "recorder", None)


@contextmanager
def fresh_hooks() -> Iterator[None]:
    """The modules that hook are imported anew, and the former ones are back afterwards."""
    kept = {
        path: module
        for path, module in sys.modules.items()
        if path.startswith(FOUND_BY + ".") and path != FOUND_BY + ".package"
    }
    for path in kept:
        del sys.modules[path]
        vars(hooks).pop(path.rpartition(".")[2], None)
    try:
        yield
    finally:
        for path in [path for path in sys.modules if path.startswith(FOUND_BY + ".")]:
            if path != FOUND_BY + ".package":
                del sys.modules[path]
        for path, module in kept.items():
            sys.modules[path] = module
            setattr(hooks, path.rpartition(".")[2], module)


@contextmanager
def without(part: Part) -> Iterator[bool]:
    """``part`` is gone meanwhile; False where nobody can take it away."""
    former = vars(part.owner).get(part.name)
    try:
        delattr(part.owner, part.name)
    except (TypeError, AttributeError):  # a class in C
        yield False
        return
    try:
        yield not hasattr(part.owner, part.name)  # else it is inherited as well
    finally:
        setattr(part.owner, part.name, former)


def train(folder: Path) -> list[float]:
    """What a training does that most hooks see; returns its losses."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for (inputs,) in DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4):
        optimizer.zero_grad()
        loss = checkpoint(net, inputs, use_reentrant=False).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save(net.state_dict(), folder / "model.pt")
    torch.load(folder / "model.pt")
    return losses


def recorded(folder: Path, around: Callable[[], Any]) -> tuple[set[str], list[float]]:
    """The phases of a training whose hooks were set within ``around()``, and its losses."""
    writer = ListWriter()
    with pytest.MonkeyPatch.context() as patched, fresh_hooks():
        patched.setattr(session, "_open_ring", lambda *_: (writer, ListTransport()))
        instrumentor = hooks.TorchInstrumentor()
        try:
            with around():
                instrumentor.instrument(skip_dep_check=True)
            losses = train(folder)
        finally:
            instrumentor.uninstrument()
    return {name for name in semconv.PHASES if writer.phases(name)}, losses


@contextmanager
def whole() -> Iterator[None]:
    yield


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said to be not recorded."""
    return [line for line in capsys.readouterr().err.splitlines() if "is not recorded" in line]


# --- What becomes of it ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the training without hooks."""
    return train(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[Part, Any]:
    """The parts that hooks need, and what stands in the place of each; None where only its name is used."""
    for name in PHASES_OF:
        _can_be_had(name)
    found: list[tuple[Part, Any]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRADEML_EXPORTER", "file")
        with noting(found), fresh_hooks():
            instrumentor = hooks.TorchInstrumentor()
            instrumentor.instrument(skip_dep_check=True)
            instrumentor.uninstrument()
    needed: dict[Part, Any] = dict.fromkeys(_imported_parts())
    for part, value in found:
        owner = part.owner
        if isinstance(owner, type) and owner.__name__.startswith("_"):
            needed.setdefault(Part(part.of, sys.modules[owner.__module__], owner.__name__))
        needed[part] = value
    return needed


def _who_needs(part: Part, parts: dict[Part, Any]) -> list[str]:
    """The modules that cannot do without ``part``, in their order."""
    return [each.of for each in parts if each.owner is part.owner and each.name == part.name]


@cache
def _imports_of_ours(name: str) -> set[str]:
    """The modules in the hooks' package that this one imports, directly or not."""
    direct = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == FOUND_BY:
                direct |= {alias.name for alias in node.names}
            elif node.module.startswith(FOUND_BY + "."):
                direct.add(node.module.rpartition(".")[2])
    return direct.union(*map(_imports_of_ours, direct))


@pytest.mark.parametrize("module", PHASES_OF)
def test_without_a_part_its_hook_is_off_in_one_line_and_the_rest_goes_on(
    module: str,
    clean: None,
    plain: list[float],
    parts: dict[Part, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = []
    for part in [part for part in parts if part.of == module]:
        also = _who_needs(part, parts)
        if also[0] != module:
            continue
        removed = []

        @contextmanager
        def around(part: Part = part, removed: list[bool] = removed) -> Iterator[None]:
            with without(part) as gone:
                removed.append(gone)
                yield

        phases, losses = recorded(tmp_path, around)
        said = lines(capsys)
        expected = EVERYTHING.difference(*(PHASES_OF[each] for each in also))
        if losses != plain:
            wrong.append(f"{part}: the losses are others")
        if not phases >= expected:
            wrong.append(f"{part}: {sorted(expected - phases)} are not recorded either")
        fewest = int(removed[0] and not str(part).startswith(DISPENSABLE))
        if not fewest <= len(said) <= len(set(also)) or len(set(said)) < len(said):
            wrong.append(f"{part}: {said or 'nothing'} was said")
    assert not wrong, "\n".join(wrong)


def test_wrappers_pass_on_arguments_that_they_do_not_know(parts: dict[Part, Any]) -> None:
    """A newer torch may call what is wrapped with more than the one known here."""
    narrow = []
    for part, value in parts.items():
        function = getattr(value, "__func__", value)
        if not inspect.isfunction(function) or str(part) in FIXED or part.name == CHECKED:
            continue
        flags = function.__code__.co_flags
        if not (flags & inspect.CO_VARARGS and flags & inspect.CO_VARKEYWORDS):
            narrow.append(str(part))
    assert not narrow, "\n".join(narrow)


def test_what_looks_different_is_left_alone(
    clean: None, plain: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = torch.utils.data.dataloader._SingleProcessDataLoaderIter
    former = kind._next_data

    def _next_data(self: Any, more: int = 0) -> Any:
        return former(self)

    with pytest.MonkeyPatch.context() as doctored:
        doctored.setattr(kind, "_next_data", _next_data)
        phases, losses = recorded(tmp_path, whole)
    assert losses == plain
    assert phases == EVERYTHING - PHASES_OF["data"]
    (line,) = lines(capsys)
    assert "data is not recorded" in line
    assert "takes (self, more), not (self)" in line


@pytest.mark.parametrize("version", ["2.3.0", "2.15.0+cu132", "2.6.0a0+ecf3bae", "2.16.0.dev20261201", "9.1"])
def test_versions_that_nobody_has_tried_are_let_in(version: str) -> None:
    (wanted,) = hooks.TorchInstrumentor().instrumentation_dependencies()
    assert Requirement(wanted).specifier.contains(version)


def test_versions_that_are_known_not_to_work_are_not() -> None:
    (wanted,) = hooks.TorchInstrumentor().instrumentation_dependencies()
    assert not Requirement(wanted).specifier.contains("2.2.2")
