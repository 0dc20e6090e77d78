# SPDX-License-Identifier: Apache-2.0
"""The distribution: wheel, sdist and editable install hold everything; nothing is imported needlessly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCES = {".git", ".venv", "build", "dist", "grademl-runs", "__pycache__"}
ENTRY_POINT_GROUPS = (
    "opentelemetry_instrumentor",
    "opentelemetry_resource_detector",
    "opentelemetry_pre_instrument",
    "opentelemetry_post_instrument",
)
CAN_COMPILE = shutil.which(
    (sysconfig.get_config_var("CC") or "cc").split()[0]
) is not None and not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether an installation gets its modules in C."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def source_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources in a folder of their own, as building leaves `build/` and `*.egg-info` beside them."""
    copy = tmp_path_factory.mktemp("sources") / "project"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCES, "*.egg-info", ".*_cache", "*.so", "tests")
    )
    return copy


@pytest.fixture(scope="module")
def built(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Path of the `wheel` and of the `sdist`; the wheel is built from the sdist, as a release is."""
    out = tmp_path_factory.mktemp("dist")
    done = _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source_copy)])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


def test_the_package_list_names_every_folder(project: dict[str, Any]) -> None:
    mapping: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    found = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in mapping.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(found)


def test_every_package_is_a_regular_package(project: dict[str, Any]) -> None:
    """A folder without `__init__.py` would be a namespace that any other distribution could add to."""
    folders = {
        path.parent
        for folder in project["tool"]["setuptools"]["package-dir"].values()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_wheel_holds_every_module_and_one_import_root(
    built: dict[str, Path], project: dict[str, Any]
) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = [name for name in wheel.namelist() if not PurePosixPath(name).parts[0].endswith(".dist-info")]
    assert {PurePosixPath(name).parts[0] for name in names} == {"grademl_otel"}
    assert "grademl_otel/py.typed" in names
    expected = {
        "/".join([*package.split("."), *path.relative_to(ROOT / folder).parts])
        for package, folder in project["tool"]["setuptools"]["package-dir"].items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == expected
    page = ROOT / "analyzers" / "html"
    parts = [path.relative_to(page) for kind in ("css", "js", "html") for path in page.rglob(f"*.{kind}")]
    assert len(parts) > 4
    assert {f"grademl_otel/analyzers/html/{part.as_posix()}" for part in parts} <= set(names)
    for module in ("/_core.", "/_jsonscan."):
        assert len([name for name in names if module in name]) == CAN_COMPILE
    assert not any(name.endswith(".c") for name in names)


def test_the_sdist_holds_what_a_reader_needs(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = {"/".join(PurePosixPath(name).parts[1:]) for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "grademl_otel/ring/_core.c"} <= names
    assert "analyzers/sources/formats/_jsonscan.c" in names


@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_it_runs_installed_from(
    kind: str, built: dict[str, Path], source_copy: Path, project: dict[str, Any], tmp_path: Path
) -> None:
    python = _environment(tmp_path)
    what = ["--editable", str(source_copy)] if kind == "editable" else [str(built[kind])]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    _check(_run([*pip, "install", "--no-deps", "--no-build-isolation", "--no-index", *what]))

    outside = tmp_path / "outside"
    outside.mkdir()
    packages = project["tool"]["setuptools"]["packages"]
    seen = _json_of(python, outside, IMPORT_ALL, json.dumps(packages), json.dumps(ENTRY_POINT_GROUPS))
    home = source_copy if kind == "editable" else tmp_path
    assert [path for path in seen["files"].values() if not Path(path).is_relative_to(home)] == []
    assert set(seen["files"]) == set(packages)
    assert seen["typed"]
    assert seen["compiled"] == CAN_COMPILE
    assert seen["entry_points"] == {
        group: sorted(project["project"]["entry-points"][group]) for group in ENTRY_POINT_GROUPS
    }

    command = _run([str(python.with_name("grademl")), "--help"], cwd=outside)
    assert command.returncode == 0, command.stderr
    assert "critical-path" in command.stdout


def test_an_installation_without_a_compiler_works_without_one(source_copy: Path, tmp_path: Path) -> None:
    build = [
        sys.executable,
        "setup.py",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path),
    ]
    done = subprocess.run(
        build, cwd=source_copy, env={**os.environ, "CC": "false"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.so")) == []


def test_importing_the_recording_half_imports_no_framework_and_no_analyzer(tmp_path: Path) -> None:
    loaded = _modules_after("import grademl_otel", tmp_path)
    heavy = {"torch", "numpy", "networkx", "click", "rich", "requests", "tensorflow", "jax"}
    assert sorted(heavy & set(loaded)) == []
    assert [name for name in loaded if name.startswith("grademl_otel.analyzers")] == []


def test_importing_the_analyzing_half_imports_nothing_of_the_recording_half(tmp_path: Path) -> None:
    loaded = _modules_after("import grademl_otel.analyzers, grademl_otel.analyzers.cli.app", tmp_path)
    ours = {name for name in loaded if name.startswith("grademl_otel.") and ".analyzers" not in name}
    assert ours <= {"grademl_otel.semconv", "grademl_otel.version"}
    assert "torch" not in loaded


@pytest.mark.parametrize("version", ["3.9", "3.14"])
def test_other_pythons_are_refused_by_the_metadata(version: str, project: dict[str, Any]) -> None:
    from packaging.specifiers import SpecifierSet

    assert version not in SpecifierSet(project["project"]["requires-python"])


def test_every_python_file_begins_with_its_licence() -> None:
    files = [
        path
        for path in ROOT.rglob("*.py")
        if not NOT_SOURCES & set(path.relative_to(ROOT).parts) and path.stat().st_size > 0
    ]
    assert len(files) > 50
    first = "# SPDX-License-Identifier: Apache-2.0"
    assert [str(path) for path in files if path.read_text(encoding="utf-8").split("\n")[0] != first] == []


# --- Helpers ----------------------------------------------------------------------------------------------

IMPORT_ALL = """
import importlib, importlib.metadata, importlib.resources, json, sys
packages, groups = json.loads(sys.argv[1]), json.loads(sys.argv[2])
entry_points = {}
for group in groups:
    ours = [e for e in importlib.metadata.entry_points(group=group) if e.value.startswith("grademl_otel")]
    for each in ours:
        each.load()
    entry_points[group] = sorted(each.name for each in ours)
assert "torch" not in sys.modules
print(json.dumps({
    "files": {name: importlib.import_module(name).__file__ for name in packages},
    "compiled": importlib.import_module("grademl_otel.ring.core").COMPILED,
    "typed": importlib.resources.files("grademl_otel").joinpath("py.typed").is_file(),
    "entry_points": entry_points,
}))
"""


def _environment(folder: Path) -> Path:
    """A new virtual environment with our dependencies but not us, made without network; its Python."""
    venv = folder / "venv"
    _check(_run([sys.executable, "-m", "venv", "--without-pip", str(venv)]))
    python = venv / "bin" / "python"
    asked = _check(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))
    # A plain path in a .pth file: the packages there are found, but the .pth files there are not read, by
    # which an editable install of this project would be found too.
    lent = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    assert sysconfig.get_path("purelib") in lent
    Path(asked.stdout.strip(), "dependencies.pth").write_text("\n".join(lent) + "\n", encoding="utf-8")
    return python


def _json_of(python: Path, cwd: Path, script: str, *arguments: str) -> Any:
    return json.loads(_check(_run([str(python), "-c", script, *arguments], cwd=cwd)).stdout)


def _modules_after(statement: str, cwd: Path) -> list[str]:
    """`sys.modules` of a new process after `statement`."""
    script = f"{statement}; import json, sys; print(json.dumps(list(sys.modules)))"
    loaded: list[str] = _json_of(Path(sys.executable), cwd, script)
    return loaded


def _check(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def _run(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)
