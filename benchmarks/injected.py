# SPDX-License-Identifier: Apache-2.0
"""How often an injected bottleneck is the one that `grademl resources` names.

    python -m benchmarks --only injected

Programs run here with one phase that something limits: the cores, a disk that a control group throttles, a
network behind a throttled proxy, a lock. Each is recorded as any run is, with the host sampled. What the
answer says was full for the longest time, and of which phases, is compared with what was injected; in runs
into which nothing was injected it should be nothing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import Final

from benchmarks.bottlenecked import CPU, DISK, HOLDING, KINDS, LOCK, NAMES, NETWORK, WAITING, Plan
from benchmarks.burning import CORES
from benchmarks.interleaved import Spread
from benchmarks.spanfiles import HOST, SPANS
from benchmarks.tables import Table
from benchmarks.ways import EVERYTHING, ROOT, command, environment
from grademl_otel.analyzers.api import resources

CALM: Final = 0.25
"""Of the cores: others may use less than that."""
LEAST: Final = 0.1
"""Of the run: what was full for a shorter time is no answer."""
NOTHING: Final = "nothing"
INTERVAL_S: Final = 0.4
"""Between two samples: the runs are short."""
_BLKIO: Final = Path("/sys/fs/cgroup/blkio")
_BY_HOLDER: Final = f"**/{HOLDING}*"
_LATEST_S: Final = 30.0
"""Until a relay has told what it knows of a run that is over."""


@dataclass(frozen=True)
class Answer:
    """What was said of one run."""

    plan: Plan
    phase: str
    """Of which something was full for the longest time; "" where nothing was."""
    resource: str
    share: float
    """Of the time of these phases; 0 where nothing was full."""
    first_issue: tuple[str, str]
    """(phase, cause)"""
    of_wanted: float
    """In what part of its time what should be named was full."""
    others: float = 0.0
    """CPUs that others used meanwhile."""

    @property
    def is_right(self) -> bool:
        return (self.phase, self.resource) == (wanted(self.plan) if self.plan.limited else ("", NOTHING))

    @property
    def is_calm(self) -> bool:
        """Whether others used so little that they, too, could not be what the run waited for."""
        return self.others < CALM * len(CORES)

    @property
    def told(self) -> str:
        if not self.phase:
            return self.resource
        limited = (self.plan.phase, *((WAITING,) if self.plan.kind == LOCK else ()))
        return f"{self.resource} of {'the phase' if self.phase in limited else 'another phase'}"


def wanted(plan: Plan) -> tuple[str, str]:
    """Return (phase, resource) that should be named."""
    return (WAITING, _BY_HOLDER) if plan.kind == LOCK else (plan.phase, plan.kind)


def measure(folder: Path, runs: int, free: int) -> Iterator[Table]:
    """Return what was named in ``runs`` runs of each kind, and in ``free`` without a bottleneck.

    Raises subprocess.CalledProcessError, TimeoutError where a run is never told of.
    """
    answers: list[Answer] = []
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [kind for kind in KINDS if kind != DISK or disk_of(folder) is not None]
    for number in range(max(runs, free)):
        for kind in kinds:  # in turns: what else goes on is the same for all
            for limited in (True, False):
                if number < (runs if limited else free):
                    plan = planned(kind, limited, number)
                    answers.append(answered(plan, folder / f"{kind}-{limited}-{number}"))
    yield _named(answers, kinds)
    yield _alarms(answers, kinds)


# --- One run ----------------------------------------------------------------------------------------------


def planned(kind: str, limited: bool, number: int) -> Plan:
    """Return what the run with this ``number`` does: the same each time."""
    chance = random.Random(f"{kind} {limited} {number}")
    if kind == CPU:
        threads = chance.randint(len(CORES), len(CORES) + 4) if limited else 1
    else:
        threads = chance.randint(2, 6) if kind == LOCK else chance.randint(1, 4)
    bounds = {DISK: (20e6, 200e6), NETWORK: (5e6, 60e6)}.get(kind, (0.0, 0.0))
    return Plan(
        kind,
        limited,
        chance.randrange(1 << 30),
        chance.uniform(2.5, 4.0),
        chance.choice(NAMES),
        threads,
        float(round(chance.uniform(*bounds))),
    )


def answered(plan: Plan, folder: Path) -> Answer:
    """Have ``plan`` run in ``folder``, and return what is said of it."""
    folder.mkdir(parents=True)
    rules = folder / "rules.toml"
    rules.write_text(rules_of(plan), "utf-8")
    log = folder / "relay.log"
    settings = {
        "GRADEML_HOST_INTERVAL": f"{INTERVAL_S}",
        "OTEL_METRIC_EXPORT_INTERVAL": f"{1000 * INTERVAL_S:.0f}",
        "GRADEML_GPU_INTERVAL": "0",
        "GRADEML_RELAY_LOG": f"{log}",
    }
    before = _others()
    with _limits(plan, folder) as made:
        made.write(folder / "plan.json")
        subprocess.run(
            command(EVERYTHING, "-m", "benchmarks.bottlenecked", "plan.json"),
            env={**environment(folder, EVERYTHING), **settings}, cwd=folder, check=True,
            stdout=subprocess.DEVNULL, stderr=(folder / "stderr").open("wb"),
        )  # fmt: skip
    latest = time.monotonic() + _LATEST_S
    while not (log.exists() and "finished " in log.read_text("utf-8")):
        if time.monotonic() > latest:
            raise TimeoutError(f"{log}: the run is not told of")
        time.sleep(0.02)
    began, used = before
    now, used_now = _others()
    return replace(answer(plan, folder, rules), others=(used_now - used) / (now - began))


def rules_of(plan: Plan) -> str:
    """Return what one would write who knows what nobody measures."""
    if plan.kind == LOCK:
        hosts = f'[hosts]\n{HOST} = ["{gethostname()}"]\n'
        return f'[[blocking]]\nphase = "**/{WAITING}*"\nby = "{_BY_HOLDER}"\n{hosts}'
    if plan.kind == DISK:
        return _fitted("disk.write") + _capacity("disk.write", "", plan.rate)
    if plan.kind == NETWORK:  # it passes the loopback twice, see `throttled`
        return _fitted("network.*") + _capacity(
            "network.*", 'resource = "/host*/network[id=lo]"\n', 2 * plan.rate
        )
    return ""


def _fitted(metric: str) -> str:
    """All phases may use it: in a training those with names of the program's own are not taken to."""
    return f'[[rule]]\nphase = "**/step"\nmetric = "{metric}"\nfit = true\n'


def _capacity(metric: str, resource: str, value: float) -> str:
    return f'[[capacity]]\nmetric = "{metric}"\n{resource}value = {value:.0f}\nunit = "By/s"\n'


def answer(plan: Plan, folder: Path, rules: Path) -> Answer:
    """Return what is said of the run in ``folder``."""
    runs = folder / "runs"
    if plan.kind == LOCK:
        document = resources(str(folder / SPANS), metrics=list(runs.glob("*/metrics.jsonl")), rules=rules)
    else:
        document = resources(str(runs), rules=rules)
    most = max(document.bottlenecks, key=lambda entry: entry.full_ns, default=None)
    issue = document.issues[0] if document.issues else None
    first = (_name(issue.of), issue.cause) if issue else ("", NOTHING)
    named = {(_name(each.key), each.resource): each.share for each in document.bottlenecks}
    of_wanted = named.get(wanted(plan), 0.0)
    if most is None or most.full_ns < LEAST * document.window.wall_ns:
        return Answer(plan, "", NOTHING, 0.0, first, of_wanted)
    return Answer(plan, _name(most.key), most.resource, most.share, first, of_wanted)


def _others() -> tuple[float, float]:
    """Return (now, CPU seconds that others than this process and its children have used)."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    idle, waiting = int(words[3]), int(words[4])
    used = (sum(map(int, words[:8])) - idle - waiting) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    ours = times.user + times.system + times.children_user + times.children_system
    return time.monotonic(), used - ours


def _name(path: str) -> str:
    return path.rpartition("/")[2].partition("[")[0]


# --- What limits ------------------------------------------------------------------------------------------


@contextmanager
def _limits(plan: Plan, folder: Path) -> Iterator[Plan]:
    """Yield the plan with what limits it: a proxy, or a control group."""
    if plan.kind == NETWORK:
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.throttled", f"{plan.rate}"],
            env=environment(folder, "throttled"), cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as proxy:  # fmt: skip
            assert proxy.stdin is not None
            assert proxy.stdout is not None
            yield replace(plan, port=int(proxy.stdout.readline()))
            proxy.stdin.close()
    elif plan.kind == DISK:
        group = _BLKIO / f"grademl-benchmark-{os.getpid()}"
        group.mkdir()
        try:
            limit = f"{disk_of(folder)} {plan.rate:.0f}"
            (group / "blkio.throttle.write_bps_device").write_text(limit)
            yield replace(plan, group=str(group))
        finally:
            _remove(group)
    else:
        yield plan


def _remove(group: Path) -> None:
    """Remove a control group, once the last process of it has ended: its relay goes back to where it was."""
    latest = time.monotonic() + _LATEST_S
    while group.exists() and time.monotonic() < latest:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended meanwhile
                (_BLKIO / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


def disk_of(folder: Path) -> str | None:
    """Return the number, ``254:0``, of the disk that ``folder`` is on; None where it cannot be throttled."""
    device = folder.stat().st_dev
    at = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not at.exists() or not os.access(_BLKIO / "blkio.throttle.write_bps_device", os.W_OK):
        return None
    whole = at.resolve().parent if (at / "partition").exists() else at
    return (whole / "dev").read_text().strip()


# --- Tables -----------------------------------------------------------------------------------------------

_TITLES: Final = {
    CPU: "CPU: all cores burn",
    DISK: "disk: a control group lets so much be written",
    NETWORK: "network: a proxy lets so much through",
    LOCK: "lock: all threads want the same",
}


def _named(answers: Sequence[Answer], kinds: Sequence[str]) -> Table:
    limited = [each for each in answers if each.plan.limited]
    rows = [_row(_TITLES[kind], [each for each in limited if each.plan.kind == kind]) for kind in kinds]
    rows.append(_row("all", limited))
    others = Spread.of([each.others for each in answers])
    return Table(
        "Injected bottlenecks that are named",
        (
            "",
            "runs",
            "named first",
            "named first instead",
            "first issue",
            "full for half of its time",
            "share",
            "named first of calm runs",
        ),
        rows,
        "Each run is another one: 2.5 to 4 s with other threads, rates, names and order of phases, "
        f"three other phases beside the limited one, all sampled every {INTERVAL_S:g} s. Named first: "
        "what was full for the longest time is the resource, and of the phase, that was limited; for "
        f"a lock the wait, and who holds it. What was full for less than {LEAST:.0%} of the run is "
        "nothing. First issue: the change with the largest gain is that one. Full for half of its "
        "time: it is named, first or not. Share: of the time of the phase, as told of what was "
        f"limited, median [quartiles]. Others used {others.middle:.1f} [{others.low:.1f}, "
        f"{others.high:.1f}] of {len(CORES)} CPUs meanwhile; calm is where that is less than "
        f"{CALM * len(CORES):g}, which who burns makes more likely.",
    )


def _row(title: str, answers: Sequence[Answer]) -> list[str]:
    calm = [each for each in answers if each.is_calm]
    return [
        title,
        f"{len(answers)}",
        f"{sum(each.is_right for each in answers)}",
        _told([each.told for each in answers if not each.is_right]),
        f"{sum(each.first_issue == wanted(each.plan) for each in answers)}",
        f"{sum(each.of_wanted >= 0.5 for each in answers)}",
        _percent([each.of_wanted for each in answers]),
        f"{sum(each.is_right for each in calm)} of {len(calm)}",
    ]


def _alarms(answers: Sequence[Answer], kinds: Sequence[str]) -> Table:
    rows = []
    for kind in kinds:
        mine = [each for each in answers if each.plan.kind == kind and not each.plan.limited]
        alarms = [each for each in mine if not each.is_right]
        calm, of_calm = (sum(each.is_calm for each in some) for some in (mine, alarms))
        told = _told([each.told for each in alarms])
        rows.append([kind, f"{len(mine)}", f"{len(alarms)}", told, f"{of_calm} of {calm}"])
    return Table(
        "The same programs without a bottleneck",
        ("", "runs", "something named", "what", "of calm runs"),
        rows,
        "Less than half of the throttle is used, one thread burns less than half of a core, or each thread "
        "has a lock of its own. Calm: as above.",
    )


def _told(answers: Sequence[str]) -> str:
    return ", ".join(f"{number} x {what}" for what, number in Counter(answers).most_common())


def _percent(shares: Sequence[float]) -> str:
    if not shares:
        return "-"
    low, middle, high = (100 * each for each in Spread.of(shares))
    return f"{middle:.0f} % [{low:.0f}, {high:.0f}]"
