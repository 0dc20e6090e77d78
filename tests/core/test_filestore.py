# SPDX-License-Identifier: Apache-2.0
"""The file store: whole lines, shared folders, full disks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grademl_otel.config import Settings
from grademl_otel.convert.spans import Span
from grademl_otel.destination import Destination
from grademl_otel.export import filestore
from grademl_otel.export.filestore import TRACES, FileStore, keepable, run_folder
from grademl_otel.export.sinks import Sinks
from grademl_otel.pump import Sink

from ..support.mark_script import INFO, RUN_ID

START = 1_764_585_229_500_000_000  # 2025-12-01 10:33:49.5 UTC


def test_folder_is_named_by_start_and_run(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "absent" / "store", RUN_ID, START)

    assert folder == tmp_path / "absent" / "store" / f"20251201T103349Z-{RUN_ID}"
    assert folder.is_dir()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_folder_of_another_rank_is_found(tmp_path: Path) -> None:
    other = tmp_path / f"20251201T103312Z-{RUN_ID}"
    other.mkdir()
    (tmp_path / f"20251201T103312Z-{'0' * 32}").mkdir()

    assert run_folder(tmp_path, RUN_ID, START) == other


def test_ranks_that_start_together_share_a_folder(tmp_path: Path) -> None:
    ready = threading.Barrier(8)
    folders = []

    def rank(number: int) -> None:
        ready.wait()
        folders.append(run_folder(tmp_path / "store", RUN_ID, START + number * 1_000_000_000))

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(8)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert len(folders) == 8
    assert len(set(folders)) == 1


def test_lines_are_appended_and_nothing_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "run"
    first, second = FileStore(folder), FileStore(folder)

    assert first.append(TRACES, b"one\n")
    assert second.append(TRACES, b"two\n")
    first.close()
    assert first.append(TRACES, b"three\n")
    assert (folder / TRACES).read_bytes() == b"one\ntwo\nthree\n"
    assert folder.stat().st_mode & 0o777 == 0o755 & ~_umask()
    assert [path.name for path in folder.iterdir()] == [TRACES]
    first.close()
    second.close()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_folder_that_cannot_be_made_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileStore(tmp_path / "file" / "run")

    assert not store.append(TRACES, b"one\n")
    problem = store.problem
    assert not store.append(TRACES, b"two\n")
    assert problem is not None
    assert "Not a directory" in problem
    assert store.problem == problem


_FULL = """
import resource, signal, sys
from pathlib import Path
from grademl_otel.config import Settings
from grademl_otel.destination import Destination
from grademl_otel.export.filestore import FileStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
store = FileStore(Path(sys.argv[1]))
results = [store.append("traces.jsonl", b"x" * 59 + b"\\n") for _ in range(3)]
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
results.append(store.append("traces.jsonl", b"y" * 59 + b"\\n"))
print(results)
"""


def test_full_disk_drops_lines_and_later_ones_stay_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[True, False, False, True]"
    assert (tmp_path / TRACES).read_bytes() == b"x" * 59 + b"\n" + b"y" * 59 + b"\n"


@pytest.mark.parametrize(
    ("blocks", "free", "kept"),
    [
        (1_000_000, 50_000, False),  # of 4 GB a twentieth
        (1_000_000, 50_001, True),
        (1 << 30, 1 << 18, False),  # of 4 TB one GiB
        (1 << 30, (1 << 18) + 1, True),
        (0, 0, True),  # a file system that does not tell
    ],
)
def test_last_of_a_disk_is_left_to_the_program(
    blocks: int, free: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    status = SimpleNamespace(f_frsize=4096, f_blocks=blocks, f_bavail=free)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: status)

    assert store.append(TRACES, b"one\n") is kept
    assert (store.problem is None) is kept
    assert (tmp_path / TRACES).read_bytes() == (b"one\n" if kept else b"")
    if not kept:
        assert "MiB are left of the disk, which are for the program" in str(store.problem)
        monkeypatch.undo()
        assert store.append(TRACES, b"two\n")  # there is room again


def test_half_line_of_a_killed_writer_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / TRACES
    for before, after in ((b"one\n" + b"x" * 200_000, b"one\n"), (b"x" * 10, b""), (b"one\n\n", b"one\n\n")):
        path.write_bytes(before)
        store = FileStore(tmp_path)
        assert store.append(TRACES, b"two\n")
        store.close()
        assert path.read_bytes() == after + b"two\n"


def test_line_behind_a_lock_that_is_not_given_back_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filestore, "_LOCK_WAIT_S", 0.05)
    (tmp_path / TRACES).write_bytes(b"half")
    with (tmp_path / TRACES).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert FileStore(tmp_path).append(TRACES, b"two\n")
    assert (tmp_path / TRACES).read_bytes() == b"half\ntwo\n"


def test_store_that_is_removed_is_made_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "run")
    assert store.append(TRACES, b"one\n")
    shutil.rmtree(tmp_path / "run")
    assert store.append(TRACES, b"two\n")
    assert (tmp_path / "run" / TRACES).read_bytes() == b"two\n"


_RANK = """
import sys
from pathlib import Path
from grademl_otel.export.filestore import FileStore, run_folder
store = FileStore(run_folder(Path(sys.argv[1]), "0123456789abcdef" * 2, 10**18))
sys.stdin.readline()
for number in range(40):
    line = (sys.argv[2] * (number * 7919 % 300_000)).encode() + b"\\n"
    assert store.append("traces.jsonl", line)
"""


def test_ranks_that_write_at_once_mix_no_lines(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", _RANK, str(tmp_path), name], stdin=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]

    (folder,) = tmp_path.iterdir()
    lines = (folder / TRACES).read_bytes().split(b"\n")[:-1]
    assert len(lines) == 3 * 40
    assert all(len(set(line)) <= 1 for line in lines)
    for name in b"abc":
        lengths = [len(line) for line in lines if line[:1] == bytes([name])]
        assert lengths == [number * 7919 % 300_000 for number in range(1, 40)]


def test_store_that_cannot_be_written_is_no_destination(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    both = Destination(("file", "otlp"), traces=True, metrics=True, through_provider=False)

    assert keepable(both, tmp_path / "new" / "store") == (both, "")
    rest, line = keepable(both, tmp_path / "file")
    assert rest == both._replace(exporters=("otlp",))
    assert line.startswith(f"nothing is kept in files: {tmp_path / 'file'}: expected a folder")
    nothing, line = keepable(both._replace(exporters=("file",)), tmp_path / "file")
    assert nothing.nowhere
    assert line.startswith("nothing is recorded: ")
    assert line.endswith("GRADEML_STORE names another folder")
    assert keepable(rest, tmp_path / "file") == (rest, "")


def sinks_of(store: Path, environ: dict[str, str], *exporters: str) -> list[Sink]:
    """Return the sinks; their pipeline is closed already, so that it leaves no thread of gRPC's behind."""
    settings = Settings.from_env({"GRADEML_SPOOL_DIR": str(store / "spool")})
    sinks = Sinks(settings, environ)
    try:
        return sinks.open(replace(INFO, store=str(store), exporters=exporters), START)
    finally:
        sinks.close(5)


def test_sinks_are_those_that_the_run_names(tmp_path: Path) -> None:
    def kinds(*exporters: str) -> list[str]:
        return [type(sink).__name__ for sink in sinks_of(tmp_path, {}, *exporters)]

    assert kinds("file") == ["FileSink"]
    assert kinds("file", "otlp") == ["FileSink", "OtlpSink"]
    assert kinds() == []


def test_destination_that_cannot_be_had_is_a_problem(tmp_path: Path) -> None:
    (sink,) = sinks_of(tmp_path, {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "otlp")

    sink.take_spans([Span("s", 1, 2, 0, 1, 2)])
    assert sink.problem is not None
    assert "OTEL_EXPORTER_OTLP_PROTOCOL='smoke': expected grpc or http/protobuf" in sink.problem
    assert sink.delivered == sink.taken


def test_full_disk_is_a_problem(tmp_path: Path) -> None:
    (sink,) = sinks_of(tmp_path, {}, "file")
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    folder.write_text("in the way")

    assert sink.problem is None
    sink.take_spans([Span("s", 1, 2, 0, 1, 2)])
    assert sink.problem is not None
    assert "dropped" in sink.problem


def test_store_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (sink,) = sinks_of(tmp_path / "file", {}, "file")

    assert sink.problem == f"nothing is written to {tmp_path / 'file'}: File exists"
