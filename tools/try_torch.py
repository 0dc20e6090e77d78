# SPDX-License-Identifier: Apache-2.0
"""Try the instrumentation with versions of PyTorch, and print the rows of the table in docs/versions.md.

    python tools/try_torch.py 2.3.1 2.6.0
    python3.13 tools/try_torch.py 2.15.0 --keep

For each version: a new virtual environment of this Python, that PyTorch as pip has it, the tests of the
hooks, and the example under `opentelemetry-instrument` with its report. An environment takes up to 6 GB and
is removed afterwards unless `--keep` is given; with `--folder` it is looked for and made there.

Exit code 0: all versions passed. 1: one did not, or could not be had; its row says which and where the log of
its tests is. 2: bad arguments.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = "tests/instrumentations"
EXAMPLE = ROOT / "examples" / "train_cnn.py"
NUMPY_1_UP_TO = (2, 2)
"""PyTorch up to this was built for NumPy 1 and warns about any other."""
TEST_TIMEOUT_S = 3600
INSTALL_TIMEOUT_S = 3600
EXAMPLE_TIMEOUT_S = 600


@dataclass
class Row:
    """What came of one version."""

    version: str
    build: str = ""
    python: str = platform.python_version()
    tests: str = "-"
    example: str = "-"
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "works" if not self.problems else "; ".join(self.problems)
        return f"| {self.build or self.version} | {self.python} | {self.tests} | {self.example} | {verdict} |"


class Environment:
    """A virtual environment with one version of PyTorch and this repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    def make(self, version: str) -> None:
        """Install everything; raises CalledProcessError where pip cannot."""
        if self.python.exists():
            return
        _run([sys.executable, "-m", "venv", str(self.folder)])
        numpy = ["numpy<2"] if _release(version) <= NUMPY_1_UP_TO else []
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        # In one go, so that nothing brings another PyTorch. No cache: it would take another 3 GB.
        wanted = [f"torch=={version}", *numpy, "--editable", f"{ROOT}[analyzer,test,frameworks]"]
        _run([*pip, "--no-cache-dir", *wanted], INSTALL_TIMEOUT_S)

    def torch(self) -> str:
        """The version that the PyTorch there says it is."""
        return _run([str(self.python), "-c", "import torch; print(torch.__version__)"]).stdout.strip()

    def run(self, *arguments: str, timeout: int, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run Python there; a failure is for the caller to see."""
        settings = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GRADEML_", "PYTHON"))}
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=folder,
            env={**settings, "GRADEML_EXPORTER": "file", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="of PyTorch, as pip names it: 2.6.0")
    parser.add_argument("--keep", action="store_true", help="leave the environments where they are")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where they are; by default a temporary one"
    )
    parser.add_argument("--only", metavar="EXPRESSION", help="of the tests, as pytest's -k")
    parser.add_argument("--log", type=Path, metavar="DIR", default=Path("build/try-torch"))
    options = parser.parse_args(arguments)
    for version in options.versions:
        if not re.fullmatch(r"\d+(\.\d+)*(\+\w+)?", version):
            parser.error(f"{version!r} is no version of PyTorch; give one as 2.6.0")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="try-torch-"))
    failed = False
    for version in options.versions:
        row = _try(Environment(folder / version), version, options.only, options.log)
        print(row, flush=True)
        failed = failed or bool(row.problems)
        if not options.keep:
            shutil.rmtree(folder / version, ignore_errors=True)
    if not options.keep and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def _try(environment: Environment, version: str, only: str | None, logs: Path) -> Row:
    row = Row(version)
    try:
        environment.make(version)
        row.build = environment.torch()
        row.tests = _tests(environment, version, only, logs, row.problems)
        row.example = _example(environment, row.problems)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or ["no word on stderr"]
        row.problems.append(f"{Path(error.cmd[0]).name} failed: {lines[-1]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        row.problems.append(str(error))
    return row


def _tests(environment: Environment, version: str, only: str | None, logs: Path, problems: list[str]) -> str:
    """Run the tests of the hooks; return what pytest counted, and of which tests where not of all."""
    chosen = ["-k", only] if only else []
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{version}.log"
    try:
        done = environment.run(
            "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, TESTS, timeout=TEST_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        log.write_bytes(error.output or b"")  # bytes, whatever was asked for
        problems.append(f"the tests had not ended after {TEST_TIMEOUT_S} s, see {log}")
        return "not to the end"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        problems.append(f"{len(failed)} failed, see {log}: {', '.join(failed[:3]) or 'no test ran'}")
    last = done.stdout.strip().rpartition("\n")[2]
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?|xfailed)", last)
    return (", ".join(counts) or "none") + (f" of `{only}`" if only else "")


def _example(environment: Environment, problems: list[str]) -> str:
    """Train the example under `opentelemetry-instrument`; return what the report says it is limited by."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bin_ = environment.python.parent
        trained = environment.run(
            *(str(bin_ / "opentelemetry-instrument"), str(environment.python), str(EXAMPLE)),
            *("--epochs", "2", "--steps", "12"),
            timeout=EXAMPLE_TIMEOUT_S,
            folder=folder,
        )
        problems += re.findall(r"^grademl: (.* is not recorded): .*$", trained.stderr, re.MULTILINE)
        if trained.returncode:
            problems.append(f"the example ended with {trained.returncode}: {trained.stderr[-200:]!r}")
            return "failed"
        reported = environment.run(str(bin_ / "grademl"), "report", timeout=EXAMPLE_TIMEOUT_S, folder=folder)
    verdict = re.search(r"^\s*VERDICT\s+(.*)$", reported.stdout, re.MULTILINE)
    if verdict is None:
        problems.append(f"no verdict: {reported.stderr[-200:]!r}")
        return "failed"
    return verdict.group(1).rstrip(".")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2])


def _run(command: Sequence[str], timeout: int = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
