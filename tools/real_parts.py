# SPDX-License-Identifier: Apache-2.0
"""The real servers that the tests run against: prints the path of one of them, built if need be.

    python tools/real_parts.py jaeger
    python tools/real_parts.py collector
    python tools/real_parts.py prometheus

A `jaeger`, `otelcol` or `prometheus` on PATH is used when it is fit for the tests; else the binary is built
with Go, once. It is kept outside the work tree in `$GRADEML_TEST_CACHE`, else `$XDG_CACHE_HOME/grademl-otel`,
else `~/.cache/grademl-otel`, in a file named by the digest of its recipe. A build takes minutes; builds of
the same part wait for each other. When the part cannot be had, one line on stderr says why; exit code 1.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

JAEGER = "github.com/jaegertracing/jaeger/cmd/jaeger"
JAEGER_VERSION = "v1.76.0"  # the release line whose Jaeger v2 binary serves the v1, v3 and gRPC query APIs
BUILDER = "go.opentelemetry.io/collector/cmd/builder"
BUILDER_CONFIG = Path(__file__).with_name("otelcol-builder.yaml")
OLDEST_COLLECTOR = (0, 153)  # first with the component names `otlp_grpc` and `otlp_http`
PROMETHEUS = "github.com/prometheus/prometheus/cmd/prometheus"
PROMETHEUS_VERSION = "v0.316.0"  # modules of release 3.N are called v0.3NN
OLDEST_PROMETHEUS = (3, 2)  # first with the settings of collector-config/prometheus
OLDEST_GO = (1, 25)
BUILD_TIMEOUT_S = 40 * 60
GO_BUILD = ("go", "build", "-trimpath", "-ldflags", "-s -w")


class Unavailable(Exception):
    """The part cannot be had here; the message says why, in one line."""


@dataclass(frozen=True)
class Part:
    """A server binary: how to recognise a fit one on PATH, and how to build it."""

    name: str
    on_path: str
    recipe: str
    """Everything that decides the content of the binary; part of its name in the cache."""
    fit: Callable[[Path], bool]
    build: Callable[[Path, Path], None]
    """`build(folder, binary)` leaves the executable at `binary`; `folder` is empty and thrown away after."""

    def cached(self, cache: Path) -> Path:
        digest = hashlib.sha256(self.recipe.encode()).hexdigest()[:12]
        return cache / f"{self.name}-{digest}"


# --- Jaeger -----------------------------------------------------------------------------------------------


def _jaeger_is_fit(binary: Path) -> bool:
    """Jaeger 1.76 or any 2.x. A binary from `go build` states no version: then Go's build record is asked."""
    try:
        stated = json.loads(_output([str(binary), "version"]).splitlines()[0]).get("gitVersion", "")
    except (Unavailable, ValueError, IndexError, AttributeError):
        return False
    if not stated:
        try:
            stated = _output(["go", "version", "-m", str(binary)])
        except Unavailable:
            return False
    found = re.search(r"\bv(\d+)\.(\d+)\.\d+", stated)
    return found is not None and (int(found[1]) >= 2 or (int(found[1]), int(found[2])) == (1, 76))


def _build_jaeger(folder: Path, binary: Path) -> None:
    _build_tool(JAEGER, JAEGER_VERSION, folder, binary)


def _build_tool(package: str, version: str, folder: Path, binary: Path) -> None:
    # `go install` refuses modules with replace directives in them; as a tool of an empty module each builds.
    _run(["go", "mod", "init", "grademl-otel/part"], folder)
    _run(["go", "get", "-tool", f"{package}@{version}"], folder)
    _run([*GO_BUILD, "-o", str(binary), package], folder)


# --- Collector --------------------------------------------------------------------------------------------


def _collector_is_fit(binary: Path) -> bool:
    """Recent enough, and holding every component of the builder's list (matched by Go module)."""
    try:
        stated = re.search(r"(\d+)\.(\d+)\.\d+", _output([str(binary), "--version"]))
        components = _output([str(binary), "components"])
    except Unavailable:
        return False
    if stated is None or (int(stated[1]), int(stated[2])) < OLDEST_COLLECTOR:
        return False
    return all(module in components for module, _version in _collector_modules())


def _collector_modules() -> list[tuple[str, str]]:
    """(module path, version) of each entry of the builder's list; it is too simple to need a YAML reader."""
    return re.findall(r"^\s*- gomod: (\S+) (v\S+)\s*$", _builder_config(), flags=re.MULTILINE)


def _builder_config() -> str:
    return BUILDER_CONFIG.read_text(encoding="utf-8")


def _build_collector(folder: Path, binary: Path) -> None:
    version = _collector_modules()[0][1]
    sources = folder / "sources"
    config = folder / "builder.yaml"
    placed = _builder_config().replace("dist:\n", f"dist:\n  output_path: {sources}\n", 1)
    config.write_text(placed, encoding="utf-8")
    # The builder writes the sources, then fails in `go mod tidy` where modules that only tests need are not
    # served. What it wrote is complete: `go build -mod=mod` finds the rest.
    generate = ["go", "run", f"{BUILDER}@{version}", "--skip-compilation", "--config", str(config)]
    try:
        _run(generate, folder)
    except Unavailable:
        if not (sources / "main.go").exists() or not (sources / "go.mod").exists():
            raise
    _run([*GO_BUILD, "-mod=mod", "-o", str(binary), "."], sources)


# --- Prometheus -------------------------------------------------------------------------------------------


def _prometheus_is_fit(binary: Path) -> bool:
    """Recent enough. A binary from `go build` states no version: then Go's build record is asked."""
    try:
        stated = re.search(r"version (\d+)\.(\d+)\.\d+", _output([str(binary), "--version"]))
        if stated is not None:
            return (int(stated[1]), int(stated[2])) >= OLDEST_PROMETHEUS
        built = re.search(
            r"prometheus/prometheus\s+v0\.(\d)(\d\d)\.\d+", _output(["go", "version", "-m", str(binary)])
        )
    except Unavailable:
        return False
    return built is not None and (int(built[1]), int(built[2])) >= OLDEST_PROMETHEUS


def _build_prometheus(folder: Path, binary: Path) -> None:
    # Without its web pages, which are no part of the module; the APIs are all there.
    _build_tool(PROMETHEUS, PROMETHEUS_VERSION, folder, binary)


PARTS: Mapping[str, Part] = {
    "jaeger": Part("jaeger", "jaeger", f"{JAEGER}@{JAEGER_VERSION}", _jaeger_is_fit, _build_jaeger),
    "collector": Part("otelcol", "otelcol", _builder_config(), _collector_is_fit, _build_collector),
    "prometheus": Part(
        "prometheus",
        "prometheus",
        f"{PROMETHEUS}@{PROMETHEUS_VERSION}",
        _prometheus_is_fit,
        _build_prometheus,
    ),
}


# --- Obtaining --------------------------------------------------------------------------------------------


def obtain(name: str) -> Path:
    """Path of an executable for the part `name` (a key of `PARTS`). Raises `Unavailable`."""
    part = PARTS[name]
    found = shutil.which(part.on_path)
    if found and part.fit(Path(found)):
        return Path(found)
    cache = cache_folder()
    binary = part.cached(cache)
    if _is_executable(binary):
        return binary
    _check_go()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{binary.name}.lock"):
            if not _is_executable(binary):  # else another process built it while we waited
                _build(part, binary)
    except OSError as error:
        raise Unavailable(f"{part.name}: cannot write to {cache}: {error.strerror or error}") from error
    return binary


def cache_folder() -> Path:
    """Where built binaries are kept: outside the work tree, so that a clean clone finds them again."""
    own = os.environ.get("GRADEML_TEST_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grademl-otel"


def _build(part: Part, binary: Path) -> None:
    print(f"building {part.name} (once, some minutes) into {binary}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=f"{part.name}-") as folder:
        built = binary.with_name(f".{binary.name}.{os.getpid()}")
        try:
            part.build(Path(folder), built)
            os.replace(built, binary)
        finally:
            built.unlink(missing_ok=True)


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _check_go() -> None:
    if shutil.which("go") is None:
        wanted = ".".join(map(str, OLDEST_GO))
        raise Unavailable(f"no `go` on PATH; install Go >= {wanted}, or put the server's binary on PATH")
    stated = _output(["go", "env", "GOVERSION"])
    found = re.search(r"go(\d+)\.(\d+)", stated)
    if found and (int(found[1]), int(found[2])) < OLDEST_GO:
        raise Unavailable(f"Go {found[1]}.{found[2]} is too old; needs >= {'.'.join(map(str, OLDEST_GO))}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the descriptor, also when the process dies
        yield


def _run(command: list[str], folder: Path) -> None:
    """Run a step of a build in `folder`, quietly; its last lines are the reason when it fails."""
    # Without cgo the same binary comes out on every machine, and no C compiler is needed.
    environ = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"`{' '.join(command[:3])}` took longer than {BUILD_TIMEOUT_S // 60} min"
        ) from error
    if done.returncode != 0:
        reason = " / ".join(done.stdout.split("\n")[-6:]).strip(" /")
        raise Unavailable(f"`{' '.join(command[:3])}` failed: {reason}")


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{command[0]}: exit code {done.returncode}")
    return done.stdout


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PARTS:
        print(f"usage: real_parts.py {'|'.join(PARTS)}", file=sys.stderr)
        return 2
    try:
        print(obtain(arguments[0]))
    except Unavailable as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
