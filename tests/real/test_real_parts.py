# SPDX-License-Identifier: Apache-2.0
"""How the real servers are obtained: which binary on PATH will do, what is cached, or why there is none."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.training import ROOT

REAL_PARTS = ROOT / "tools" / "real_parts.py"


@pytest.fixture
def real_parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REAL_PARTS.parent)
    return importlib.import_module("real_parts")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def test_a_jaeger_on_path_is_used(path: Path, tmp_path: Path) -> None:
    jaeger = program(path, "jaeger", """echo '{"gitCommit":"x","gitVersion":"v2.11.0","buildDate":"x"}'""")
    done = obtain("jaeger", path, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, str(jaeger))


@pytest.mark.parametrize(
    "said",
    [
        """echo '{"gitVersion":"v1.60.0"}'""",
        """echo 'jaeger, a text editor'""",
        "exit 3",
        """echo '[]'""",
        "",
    ],
)
def test_another_jaeger_on_path_is_not(said: str, path: Path, tmp_path: Path) -> None:
    program(path, "jaeger", said)
    done = obtain("jaeger", path, tmp_path)
    assert done.returncode == 1  # and to build one there is no Go on this PATH
    assert done.stderr.startswith("jaeger: no `go` on PATH")
    assert len(done.stderr.splitlines()) == 1


def test_a_collector_on_path_needs_all_components(path: Path, tmp_path: Path, real_parts: ModuleType) -> None:
    modules = [module for module, _ in real_parts._collector_modules()]
    assert len(modules) >= 5
    collector = fake_collector(path, "0.160.0", modules)
    assert obtain("collector", path, tmp_path).stdout.strip() == str(collector)
    fake_collector(path, "0.160.0", modules[:-1])
    assert obtain("collector", path, tmp_path).returncode == 1
    fake_collector(path, "0.140.0", modules)
    assert obtain("collector", path, tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("said", "fit"),
    [
        ("echo 'prometheus, version 3.5.0 (branch: HEAD, revision: x)'", True),
        ("echo 'prometheus, version 3.1.0 (branch: HEAD, revision: x)'", False),
        ("echo 'prometheus, version 2.53.4 (branch: HEAD, revision: x)'", False),
        ("exit 1", False),
    ],
)
def test_a_prometheus_on_path_must_take_otlp_as_we_send_it(
    said: str, fit: bool, path: Path, tmp_path: Path
) -> None:
    program(path, "prometheus", said)
    assert (obtain("prometheus", path, tmp_path).returncode == 0) is fit


@pytest.mark.parametrize(("built", "fit"), [("v0.316.0", True), ("v0.300.1", False)])
def test_of_a_prometheus_without_a_version_go_is_asked(
    built: str, fit: bool, path: Path, tmp_path: Path
) -> None:
    program(path, "prometheus", "echo 'prometheus, version  (branch: , revision: x)'")
    program(
        path,
        "go",
        f"""
        [ "$1" = version ] && echo '\tdep\tgithub.com/prometheus/prometheus\t{built}\th1:x' && exit 0
        [ "$1" = env ] && echo go1.20.0
        """,
    )
    assert (obtain("prometheus", path, tmp_path).returncode == 0) is fit


def test_a_binary_in_the_cache_is_used_without_go(path: Path, tmp_path: Path, real_parts: ModuleType) -> None:
    cached = real_parts.PARTS["jaeger"].cached(tmp_path / "cache")
    cached.parent.mkdir()
    program(cached.parent, cached.name, "exit 0")
    assert obtain("jaeger", path, tmp_path).stdout.strip() == str(cached)


def test_another_recipe_is_another_binary(tmp_path: Path, real_parts: ModuleType) -> None:
    part = real_parts.PARTS["collector"]
    changed = real_parts.Part(part.name, part.on_path, part.recipe + "# \n", part.fit, part.build)
    assert changed.cached(tmp_path) != part.cached(tmp_path)
    assert part.cached(tmp_path).parent == tmp_path


def test_an_old_go_is_named(path: Path, tmp_path: Path) -> None:
    program(path, "go", "echo go1.20.3")
    done = obtain("jaeger", path, tmp_path)
    assert done.returncode == 1
    assert "Go 1.20 is too old; needs >= 1.25" in done.stderr


def test_a_build_that_fails_gives_its_reason_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    program(path, "go", """[ "$1" = env ] && echo go1.26.0 && exit 0; echo no space left on device; exit 1""")
    done = obtain("jaeger", path, tmp_path)
    assert done.returncode == 1
    assert "no space left on device" in done.stderr.splitlines()[-1]
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock"] == []


def test_a_build_is_kept_and_done_once(path: Path, tmp_path: Path, real_parts: ModuleType) -> None:
    log = tmp_path / "calls"
    program(
        path,
        "go",
        f"""
        echo "$@" >> {log}
        [ "$1" = env ] && echo go1.26.0
        out=
        while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
        if [ -n "$out" ]; then echo '#!/bin/sh' > "$out"; /bin/chmod +x "$out"; fi
        exit 0
        """,
    )
    first = obtain("jaeger", path, tmp_path)
    assert first.returncode == 0, first.stderr
    calls = log.read_text()
    assert f"get -tool {real_parts.JAEGER}@{real_parts.JAEGER_VERSION}" in calls
    second = obtain("jaeger", path, tmp_path)
    assert second.stdout == first.stdout
    assert log.read_text() == calls


def test_the_cache_is_outside_the_work_tree(monkeypatch: pytest.MonkeyPatch, real_parts: ModuleType) -> None:
    for name in ("GRADEML_TEST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert ROOT not in real_parts.cache_folder().parents
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert real_parts.cache_folder() == Path("/xdg/grademl-otel")
    monkeypatch.setenv("GRADEML_TEST_CACHE", "/own")
    assert real_parts.cache_folder() == Path("/own")


def test_usage() -> None:
    done = subprocess.run([sys.executable, str(REAL_PARTS), "zipkin"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "jaeger|collector" in done.stderr


def program(folder: Path, name: str, script: str) -> Path:
    file = folder / name
    file.write_text("#!/bin/sh\n" + textwrap.dedent(script) + "\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def fake_collector(folder: Path, version: str, modules: list[str]) -> Path:
    listed = " ".join(modules)
    return program(
        folder, "otelcol", f'[ "$1" = components ] && echo {listed} || echo otelcol version {version}'
    )


def obtain(part: str, path: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "PATH": str(path),
        "GRADEML_TEST_CACHE": str(tmp_path / "cache"),
    }
    command = [sys.executable, str(REAL_PARTS), part]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
