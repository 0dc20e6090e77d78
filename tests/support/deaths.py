# SPDX-License-Identifier: Apache-2.0
"""Start `plain_training` in surroundings that are hostile, and read what came of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from grademl_otel import marks, semconv
from grademl_otel.digest import SETTINGS_DIGITS, destination_digest
from grademl_otel.ring import layout

from .needed import cannot_be_had
from .rawspans import RawSpan, read_lines
from .relays import until
from .training import ROOT, clean_environ

PROGRAM = Path(__file__).with_name("plain_training.py")
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Scene:
    """One training in a folder of its own, with a relay of its own: the settings that differ name it."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    """What starts the program: a command that makes its surroundings."""

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    @property
    def log(self) -> Path:
        return self.folder / "relay.log"

    @property
    def environ(self) -> dict[str, str]:
        settings = {"GRADEML_EXPORTER": "file", "GRADEML_RELAY_LOG": str(self.log), **self.settings}
        return clean_environ(self.folder, settings)

    @property
    def digest(self) -> str:
        return destination_digest(self.environ)

    @property
    def rings(self) -> Path:
        """The folder in which relay and process meet."""
        chosen = self.settings.get("GRADEML_RING_DIR")
        return (Path(chosen) if chosen else SHARED_MEMORY) / f"grademl-{os.getuid()}"

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.rings.glob(f"{self.digest}-*{suffix}"))

    # --- Running ---------------------------------------------------------------------------------------

    def start(self, ending: str, steps: int, log: str = "", **options: object) -> subprocess.Popen[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = log or str(self.folder / "steps")
        return subprocess.Popen(
            [*self.prefix, sys.executable, str(PROGRAM), str(steps), ending, log],
            env=self.environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )

    @property
    def done(self) -> int:
        """Steps that the program has finished, by its own account."""
        try:
            return (self.folder / "steps").stat().st_size
        except FileNotFoundError:
            return 0

    def stop(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Let a program that waits come to its end."""
        (self.folder / "steps.stop").touch()
        _, err = process.communicate(timeout=30)
        return process.returncode, err

    def relays(self) -> list[int]:
        """The relays of this scene that live."""
        return [pid for pid, command in _processes() if self.digest in command and not _is_detach(command)]

    def trainer(self) -> int:
        """The process id of the program, seen from here."""
        log = str(self.folder / "steps")
        (pid,) = (pid for pid, command in _processes() if command[:1] == [sys.executable] and log in command)
        return pid

    def kill_relay(self) -> None:
        """Kill the relay once it serves, and wait until it is gone."""
        until(lambda: len(self.relays()) == 1 and self.says(f" {self.relays()[0]} attached"))
        (pid,) = self.relays()
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self.relays())

    def says(self, text: str) -> bool:
        """Whether the relay's log says so."""
        return self.log.exists() and text in self.log.read_text()

    def clear(self) -> None:
        for pid in self.relays():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.relays())
        if self.rings.is_dir():
            for path in self.rings.glob(f"*{self.digest[:SETTINGS_DIGITS]}*"):
                path.unlink() if not path.is_dir() or path.is_symlink() else shutil.rmtree(path)

    def wait_for_copy(self) -> int:
        """Wait until the relay's copy of the ring has all the steps done by now, and return how many."""
        done = self.done
        settings = self.digest[:SETTINGS_DIGITS]
        offset = layout.ACCUMULATORS + 8 * marks.ACC_STEPS

        def copied() -> int:
            for path in self.rings.glob(f"{settings}*{layout.SUFFIX}"):
                return int(layout.I64.unpack_from(path.read_bytes(), offset)[0])
            return 0

        until(lambda: copied() >= done)
        return done

    # --- What came of it -------------------------------------------------------------------------------

    def spans(self) -> list[RawSpan]:
        return [span for path in self.store.glob("*/traces.jsonl") for span in read_lines(path)]

    def runs(self) -> list[RawSpan]:
        return [span for span in self.spans() if span.name == semconv.RUN]

    def run(self) -> RawSpan:
        """The one run, once its end is told."""
        until(self.runs)
        (run,) = self.runs()
        return run

    def rows(self) -> list[int]:
        """Step numbers of the table, in order; a row that arrived twice is there twice."""
        found: list[int] = []
        for span in self.spans():
            if span.name == semconv.WINDOW and "grademl.table.step" in span.attributes:
                steps: list[int] = span["grademl.table.step"]
                length = max(len(span["grademl.table.start_us"]), len(span["grademl.table.dur_us"]))
                found += steps if len(steps) == length else steps * length
        return sorted(found)


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Process ids and commands of all that live."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text(errors="replace").split("\0")[:-1]
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            yield int(entry.name), command


def _is_detach(command: list[str]) -> bool:
    return any(word.endswith("detach.py") for word in command)


def theirs(err: str) -> str:
    """What the program itself said on stderr; addresses and our lines left out."""
    lines = [line for line in err.splitlines(keepends=True) if not line.startswith("grademl: ")]
    return re.sub(r"0x[0-9a-f]+", "0x", "".join(lines))


def ours(err: str) -> list[str]:
    """Our lines, without the one that says where the telemetry goes."""
    lines = [line for line in err.splitlines() if line.startswith("grademl: ")]
    return [line for line in lines if not line.startswith("grademl: recording run")]


# --- Surroundings -----------------------------------------------------------------------------------------


def as_root() -> list[str]:
    """What makes a command root: nothing, `sudo`, or the test is skipped; on CI it must be there."""
    if os.getuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n", "--preserve-env"]
    cannot_be_had("this machine has no root, to make a mount, a PID namespace or a cgroup")


def in_private_mounts(*commands: str) -> list[str]:
    """Run shell ``commands``, mounts for one, that nobody else sees, then the program."""
    return _in_namespace("--mount", "--propagation", "private", commands=commands)


def as_pid_1() -> list[str]:
    """The program is PID 1 of a PID namespace: at its end all others in it die."""
    return _in_namespace("--pid", "--fork", "--mount-proc", "--kill-child")


def as_container() -> list[str]:
    """The same, with an IPC namespace of its own, too; /dev/shm is shared with the host."""
    return _in_namespace("--pid", "--ipc", "--fork", "--mount-proc", "--kill-child")


def as_user(uid: int) -> list[str]:
    """The program runs as another user, who may or may not exist, and who may read this Python."""
    if shutil.which("setpriv") is None:
        cannot_be_had("this machine has no setpriv")
    become = f'exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"'
    return _in_namespace("--mount", "--propagation", "private", commands=_opened_to_all(), last=become)


def _opened_to_all() -> list[str]:
    """Mounts that show the folders of this Python also where one above them is its owner's alone."""
    needed = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, ROOT)}
    closed: dict[Path, list[Path]] = {}
    for path in sorted(needed):
        above = [folder for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH]
        if above:
            closed.setdefault(above[-1], []).append(path)
    commands: list[str] = []
    for folder, paths in closed.items():
        commands.append("mount -t tmpfs -o mode=755 none /mnt")
        for number, path in enumerate(paths):
            commands += [f"mkdir /mnt/{number}", f"mount --rbind {quote(str(path))} /mnt/{number}"]
        commands.append(f"mount -t tmpfs -o mode=755 none {quote(str(folder))}")
        for number, path in enumerate(paths):
            inside = quote(str(path))
            commands += [f"mkdir -p {inside}", f"mount --rbind /mnt/{number} {inside}"]
    return commands


def in_memory_cgroup(name: str, limit_bytes: int) -> list[str]:
    """The program may have so much memory before the kernel kills it; see `remove_memory_cgroup`."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (first / "memory.limit_in_bytes").exists():
        group, limit = first / name, "memory.limit_in_bytes"
    elif "memory" in _read(second / "cgroup.subtree_control"):
        group, limit = second / name, "memory.max"
    else:
        cannot_be_had("this machine has no memory cgroup")
    script = f"mkdir -p {group} && echo {limit_bytes} > {group}/{limit} && echo $$ > {group}/cgroup.procs"
    return _probed([*as_root(), "sh", "-c", f"{script} && {_BACK_TO_USER}", "sh"], "memory cgroup")


def remove_memory_cgroup(name: str) -> None:
    """Remove the cgroup, which must be empty."""
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        if (parent / name).is_dir():
            subprocess.run([*as_root(), "rmdir", str(parent / name)], capture_output=True, check=False)


def _in_namespace(*options: str, commands: Sequence[str] = (), last: str | None = None) -> list[str]:
    if shutil.which("unshare") is None:
        cannot_be_had("this machine has no unshare")
    script = " && ".join([*commands, last or _BACK_TO_USER])
    return _probed([*as_root(), "unshare", *options, "sh", "-c", script, "sh"], "namespaces")


_BACK_TO_USER = (
    'exec "$@"'
    if os.getuid() == 0
    else f'exec setpriv --reuid {os.getuid()} --regid {os.getgid()} --clear-groups "$@"'
)
"""The surroundings are made by root, the program is the user's."""


def _probed(command: list[str], part: str) -> list[str]:
    probe = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        cannot_be_had(f"this machine has no {part}: {probe.stderr.strip()}")
    return command


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def wait_for_steps(scene: Scene, steps: int) -> None:
    until(lambda: scene.done >= steps)


def killed_together(processes: Sequence[int], before: Callable[[], object] = lambda: None) -> None:
    """Kill processes so that none of them sees another die: they are stopped first."""
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.05)
    before()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
