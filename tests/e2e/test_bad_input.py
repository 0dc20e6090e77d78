# SPDX-License-Identifier: Apache-2.0
"""Bad input gets one line on stderr, which says what, where and what to do, and an exit code of its kind.

Never a traceback, never a half-written file.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import servers, training
from tests.support.oddserver import OddServer, serving
from tests.support.synthetic import Training, simulate

TEXT = {"Content-Type": "text/plain"}
USAGE, SOURCE, INCOMPLETE, NOTHING, INTERRUPTED = 2, 3, 4, 5, 130


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of one recorded run."""
    return simulate(Training()).write_store(tmp_path / "store").parent


def refused(arguments: Sequence[str], folder: Path, code: int, *says: str) -> str:
    """Run `grademl`, which must end with `code` and one line on stderr, holding each of `says`; the line."""
    done = training.grademl(arguments, folder)
    lines = done.err.splitlines()
    assert (done.code, len(lines)) == (code, 1), done
    assert lines[0].startswith("grademl: ")
    assert done.out == ""
    for pattern in says:
        assert re.search(pattern, lines[0]), (pattern, lines[0])
    return lines[0]


# --- Jaeger -----------------------------------------------------------------------------------------------


def test_nobody_listens(tmp_path: Path) -> None:
    port = servers.free_ports(1)[0]
    refused([f"jaeger://127.0.0.1:{port}"], tmp_path, SOURCE, f"127.0.0.1:{port}", "refused", "16686")


def test_no_such_host(tmp_path: Path) -> None:
    refused(["jaeger://no-such-host.invalid"], tmp_path, SOURCE, r"no-such-host\.invalid")


@pytest.mark.real
@pytest.mark.parametrize("port", ["otlp_http", "otlp_grpc", "query_grpc"])
@pytest.mark.parametrize("scheme", ["jaeger", "http"])
def test_another_port_of_jaeger(port: str, scheme: str, jaeger: servers.Jaeger, tmp_path: Path) -> None:
    address = getattr(jaeger, port).removeprefix("http://")
    refused([f"{scheme}://{address}"], tmp_path, SOURCE, re.escape(address), r"\b16686\b")


@pytest.mark.real
def test_a_jaeger_without_the_run(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    refused([jaeger.source, "--run", "f" * 32], tmp_path, NOTHING, "f{8}", "grademl runs")


@pytest.mark.real
def test_a_jaeger_without_the_trace(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    refused(["path", jaeger.source, "--trace", "abc123"], tmp_path, NOTHING, "abc123")
    refused(["path", f"{jaeger.query_url}/trace/abc123"], tmp_path, NOTHING, "abc123")


@pytest.mark.parametrize("scheme", ["jaeger", "http"])
@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (OddServer(404, b"404 page not found", TEXT), "404"),
        (OddServer(401, b"missing tenant header", TEXT), "401 .*missing tenant header"),
        (OddServer(401, b"missing tenant header", TEXT), "--header"),
        (OddServer(403, b""), "403"),
        (OddServer(500, b"disk on fire"), "500"),
        (OddServer(200, b"<html>Sign in</html>", {"Content-Type": "text/html"}), "[Hh][Tt][Mm][Ll]"),
        (OddServer(200, b"<html>Sign in</html>"), r"JSON"),
        (OddServer(200, b'{"services": ['), r"JSON"),
        (OddServer(200, b"[1, 2"), r"JSON"),
        (OddServer(200, b"\x00\xff\xfe"), r"JSON"),
        (OddServer(302, b"", {"Location": "http://elsewhere.invalid/login"}), "elsewhere.invalid"),
        (OddServer(hang_up=True), "closed|broken|broke"),
    ],
    ids=lambda value: f"{value.status}{value.body[:9]!r}" if isinstance(value, OddServer) else "",
)
def test_a_server_that_does_not_answer_as_jaeger_does(
    odd: OddServer, says: str, scheme: str, tmp_path: Path
) -> None:
    with serving(odd):
        line = refused([f"{scheme}://127.0.0.1:{odd.port}"], tmp_path, SOURCE, says, str(odd.port))
    assert odd.asked
    assert "elsewhere.invalid" not in {headers.get("Host") for _, headers in odd.asked}
    assert "\x00" not in line


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    with serving(OddServer(hang=True)) as odd:
        refused([odd.url, "--timeout", "0.5"], tmp_path, SOURCE, str(odd.port), "--timeout")


def test_secrets_are_sent_and_not_told(tmp_path: Path) -> None:
    with serving(OddServer(401, b"no")) as odd:
        line = refused(["runs", odd.url, "--header", "X-Key=hunter2"], tmp_path, SOURCE, "401")
    assert odd.asked[0][1]["X-Key"] == "hunter2"
    assert "hunter2" not in line


@pytest.mark.parametrize("address", ["http://user:hunter2@127.0.0.1:1/", "jaeger://hunter2@127.0.0.1:1"])
def test_a_secret_in_an_address_is_refused_and_not_told(address: str, tmp_path: Path) -> None:
    line = refused(["runs", address], tmp_path, USAGE, "--header")
    assert "hunter2" not in line


# --- SOURCE and options -----------------------------------------------------------------------------------


def test_no_source_and_no_runs_here(tmp_path: Path) -> None:
    refused([], tmp_path, NOTHING, "grademl-runs", "opentelemetry-instrument")


def test_a_folder_without_runs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(["report", "empty"], tmp_path, NOTHING, "empty")


def test_no_such_file(tmp_path: Path) -> None:
    refused(["report", "./absent.jsonl"], tmp_path, SOURCE, r"absent\.jsonl", "no such")


def test_a_glob_without_matches(tmp_path: Path) -> None:
    refused(["report", "runs-*/traces.jsonl"], tmp_path, NOTHING, r"runs-\*")


def test_an_unknown_scheme(tmp_path: Path) -> None:
    refused(["report", "zipkin://host:9411"], tmp_path, USAGE, "zipkin", "jaeger://")


@pytest.mark.parametrize("port", ["x", "99999", "-1"])
def test_a_port_that_is_none(port: str, tmp_path: Path) -> None:
    refused(["report", f"jaeger://host:{port}"], tmp_path, USAGE, "port")


def test_a_mistyped_command(run: Path, tmp_path: Path) -> None:
    refused(["rpeort", str(run)], tmp_path, USAGE, "report")
    refused(["critical-pth"], tmp_path, USAGE, "critical-path")


def test_a_mistyped_option(run: Path, tmp_path: Path) -> None:
    refused(["report", str(run), "--jsn"], tmp_path, USAGE, "--json")


@pytest.mark.parametrize(
    "option",
    [
        ["--steps", "a:b"],
        ["--ranks", "x"],
        ["--since", "soon"],
        ["--top", "0"],
        ["--timeout", "-1"],
        ["--header", "nonsense"],
        ["--trace", "xyz"],
        ["--attempt", "first"],
        ["-f", "yaml"],
        ["--overlap-tolerance", "much"],
    ],
    ids=" ".join,
)
def test_an_option_with_a_wrong_value(option: list[str], run: Path, tmp_path: Path) -> None:
    refused(["report", str(run), *option], tmp_path, USAGE, option[0])


@pytest.mark.parametrize("option", [["--run", "ffff"], ["--ranks", "7"], ["--steps", "100000:100001"]])
def test_a_selection_without_matches(option: list[str], run: Path, tmp_path: Path) -> None:
    refused(["report", str(run), *option], tmp_path, NOTHING)


# --- Files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"hello\n",
        b"\x00\x01\x02\xff" * 100,
        b"{}",
        b"[]",
        b"null",
        b"17",
        b'{"resourceSpans": 3}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}\n',
        b'{"data": [{"spans": "none"}]}',
        b'{"hello": "world"}\n{"hello": "world"}\n',
        b"[" * 100_000,
        b"\x1f\x8b\x08\x00garbage",
        gzip.compress(b"hello"),
        b"\xef\xbb\xbf",
        b"<html></html>",
        b"PAR1....PAR1",
    ],
    ids=lambda content: repr(content[:24]),
)
def test_a_file_of_something_else(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes(content)
    done = training.grademl(["report", str(file)], tmp_path)
    assert done.code in (SOURCE, NOTHING), done
    assert len(done.err.splitlines()) == 1
    assert "some.jsonl" in done.err
    assert done.out == ""


def test_a_file_that_may_not_be_read(run: Path, tmp_path: Path) -> None:
    traces = run / "traces.jsonl"
    traces.chmod(0)
    if os.access(traces, os.R_OK):
        pytest.skip("this user may read everything")
    refused(["report", str(run)], tmp_path, SOURCE, "permission denied")


def test_a_file_still_being_written_is_read_up_to_its_last_line(run: Path, tmp_path: Path) -> None:
    traces = run / "traces.jsonl"
    whole = traces.read_bytes()
    traces.write_bytes(whole + whole.split(b"\n")[0][:-100])
    done = training.grademl(["report", str(run)], tmp_path).ok()
    assert "VERDICT" in done.out
    assert re.search("last line", done.out + done.err)


def test_a_file_that_lacks_a_window_fails_only_if_strict(run: Path, tmp_path: Path) -> None:
    traces = run / "traces.jsonl"
    request = json.loads(traces.read_bytes().split(b"\n")[0])
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans.remove(next(span for span in spans if span["name"] == "window"))
    traces.write_text(json.dumps(request) + "\n")
    done = training.grademl(["report", str(run), "--strict"], tmp_path)
    assert done.code == INCOMPLETE
    assert "INCOMPLETE" in done.out  # the report is printed all the same
    assert len(done.err.splitlines()) == 1
    assert training.grademl(["report", str(run)], tmp_path).ok().err == ""


def test_standard_input_can_be_garbage_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(training.BIN / "grademl"), "report", "-"],
        input=b"not json\n",
        capture_output=True,
        env=training.clean_environ(tmp_path),
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode in (SOURCE, NOTHING)
    assert len(done.stderr.splitlines()) == 1


# --- Output -----------------------------------------------------------------------------------------------


def test_a_failure_leaves_the_output_file_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    folder.mkdir()
    old = folder / "old.json"
    old.write_text("precious")
    refused(["report", "absent", "--json", "-o", str(old)], tmp_path, SOURCE)
    refused(["report", "absent", "--json", "-o", str(folder / "new.json")], tmp_path, SOURCE)
    assert old.read_text() == "precious"
    assert [path.name for path in folder.iterdir()] == ["old.json"]


def test_an_output_file_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "no" / "such" / "folder")
    refused(["report", str(run), "-o", absent], tmp_path, USAGE, "cannot write")
    refused(["report", str(run), "-o", str(tmp_path)], tmp_path, USAGE, "directory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_good_answer_goes_into_the_file(run: Path, tmp_path: Path) -> None:
    """So that the two tests above could fail."""
    file = tmp_path / "answer.json"
    done = training.grademl(["report", str(run), "--json", "-o", str(file)], tmp_path).ok()
    assert done.out == ""
    assert json.loads(file.read_text())["schema"] == "grademl.report/1"


def test_a_reader_that_goes_away(run: Path, tmp_path: Path) -> None:
    """`grademl | head -1`: the pipe breaks, and nobody needs to hear of it."""
    command = subprocess.Popen(
        [str(training.BIN / "grademl"), "report", str(run), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=training.clean_environ(tmp_path),
        cwd=tmp_path,
    )
    assert command.stdout is not None
    command.stdout.close()
    _, err = command.communicate(timeout=60)
    assert err == b""


def test_an_interrupt_is_no_traceback(tmp_path: Path) -> None:
    with serving(OddServer(hang=True)) as odd:
        command = subprocess.Popen(
            [str(training.BIN / "grademl"), "runs", odd.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=training.clean_environ(tmp_path),
            cwd=tmp_path,
        )
        servers.wait_until(lambda: bool(odd.asked), "the first request")
        time.sleep(0.2)  # it is waiting for the answer now
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
    assert command.returncode == INTERRUPTED
    assert "Traceback" not in err


# --- The missing extra ------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["click", "msgspec", "numpy", "rich"])
def test_a_missing_package_of_the_extra(package: str, run: Path, tmp_path: Path) -> None:
    done = _without(package, ["report", str(run)], tmp_path)
    assert done.returncode == USAGE
    assert len(done.stderr.splitlines()) == 1
    assert package in done.stderr
    assert "pip install 'grademl-otel[analyzer]'" in done.stderr


def test_a_missing_http_client_is_missed_only_where_it_is_needed(run: Path, tmp_path: Path) -> None:
    assert _without("urllib3", ["report", str(run), "--json"], tmp_path).returncode == 0
    done = _without("urllib3", ["report", "jaeger://127.0.0.1:1"], tmp_path)
    assert done.returncode == USAGE
    assert "pip install 'grademl-otel[analyzer]'" in done.stderr


def test_a_missing_networkx_is_missed_only_where_a_graph_is_drawn(run: Path, tmp_path: Path) -> None:
    assert _without("networkx", ["report", str(run), "--json"], tmp_path).returncode == 0
    drawn = tmp_path / "run.graphml"
    done = _without("networkx", ["export", str(run), "--to", "graphml", "-o", str(drawn)], tmp_path)
    assert done.returncode == USAGE
    assert "pip install 'grademl-otel[analyzer]'" in done.stderr
    assert not drawn.exists()


def _without(package: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `grademl` in a Python in which `package` cannot be imported."""
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from grademl_otel.analyzers.cli import main\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=training.clean_environ(folder),
        cwd=folder,
        timeout=60,
    )
