# SPDX-License-Identifier: Apache-2.0
"""What screens look like where they are shown: widths, wide characters, colours, encodings, notebooks."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from grademl_otel import analyzers
from grademl_otel.analyzers import terminal
from grademl_otel.analyzers.printable import encodable
from grademl_otel.analyzers.reporting.canvas import BAR, FIXED, LEFT, RIGHT, Canvas, table
from grademl_otel.analyzers.shown import Shown
from tests.support.jaeger_cases import jaeger_document, many_traces
from tests.support.synthetic import MS, Training, simulate

WIDTHS = (40, 60, 80, 110, 120, 200)
GRADEML = str(Path(sys.executable).parent / "grademl")
UNIT = re.compile(r"(ns|us|ms|s|min|h|%|B|KiB|MiB|GiB)\b|%")
UNTOLD = "This run in Jaeger: "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """An answer for each screen."""
    folder = tmp_path_factory.mktemp("answers")
    trainings = {
        "loader": Training(epochs=2, steps_per_epoch=40, fetch_ns=39 * MS, checkpoint_ns=3 * MS),
        "ranks": Training(ranks=4, epochs=1, steps_per_epoch=40, buckets=3, compute_scale={2: 1.4}),
        "killed": Training(ranks=2, epochs=1, steps_per_epoch=40, killed_at=31),
    }
    for name, training in trainings.items():
        simulate(training).write_store(folder / name)
    several = folder / "several"
    for number in range(2):
        simulate(
            Training(run_id=f"{number}" * 32, epochs=1, steps_per_epoch=2, ranks=1 + number)
        ).write_store(several)
    traces = folder / "many.json"
    traces.write_text(json.dumps(many_traces(["A[0,10) B<A[1,9)"] * 20)))
    found: dict[str, Shown] = {f"report {name}": analyzers.report(folder / name) for name in trainings}
    found |= {f"path {name}": analyzers.critical_path(folder / name) for name in trainings}
    found["path sections"] = analyzers.critical_path(folder / "loader", by="section")
    found["population"] = analyzers.critical_path(traces)
    found["ranks"] = analyzers.ranks(folder / "ranks")
    found["runs"] = analyzers.runs(several)
    found["doctor"] = analyzers.doctor(folder / "ranks")
    found["model"] = analyzers.execution_model(folder / "loader")
    return found


def screens(answers: dict[str, Shown], width: int) -> Iterator[tuple[str, list[str]]]:
    for name, answer in answers.items():
        lines = answer.to_text(width=width).splitlines()
        yield name, [line for line in lines if not line.startswith(UNTOLD)]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_screen_fits(width: int, answers: dict[str, Shown]) -> None:
    for name, lines in screens(answers, width):
        assert max(map(cell_len, lines)) <= width, name
        assert not [line for line in lines if line != line.rstrip()], name
        assert "…" not in "".join(lines), name  # nothing is cut


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_parted_from_its_unit(width: int, answers: dict[str, Shown]) -> None:
    for name, lines in screens(answers, width):
        for one, following in pairwise(lines):
            parted = re.search(r"\d$", one) and UNIT.match(following.strip())
            assert not parted, (name, one, following)


def numbers(lines: list[str]) -> set[str]:
    return {found[0] for line in lines for found in re.finditer(r"\d[\d,.]* (?:us|ms|s|%)(?!\w)", line)}


def test_what_a_narrow_screen_tells_a_wide_one_tells(answers: dict[str, Shown]) -> None:
    wide = dict(screens(answers, 200))
    for width in WIDTHS[:-1]:
        for name, lines in screens(answers, width):
            if width >= 110:
                assert numbers(lines) == numbers(wide[name]), (name, width)
            assert numbers(lines) <= numbers(wide[name]), (name, width)


def drawn(width: int, *args: object, **options: object) -> list[str]:
    canvas = Canvas(False, width)
    canvas.tables([table(*args, **options)])  # type: ignore[arg-type]
    return canvas.text().splitlines()


WIDE = ("t", [("name", LEFT), ("id", FIXED), ("p50", RIGHT), ("p99", RIGHT), ("", BAR)])
ROWS = [("a long name of something", "0123456789ab", "123,456.7 ms", "1.2 s", "#" * 12)]


def test_columns_go_in_order_and_are_named() -> None:
    spare = ("p99", "id")
    tables = {width: drawn(width, *WIDE, ROWS, header=True, spare=spare) for width in (80, 60, 50, 40)}
    assert tables[80][2].split() == " ".join(ROWS[0]).split()
    assert "#" not in tables[60][2]
    assert tables[60][1].split() == ["name", "id", "p50", "p99"]
    assert tables[50][-1] == "(no room for: p99)"
    assert tables[40][-1] == "(no room for: p99, id)"
    for lines in tables.values():
        assert any("123,456.7 ms" in line for line in lines)


def test_wide_characters_keep_columns_aligned() -> None:
    names = ["データ待ち", "训练", "e\u0301tape", "🚀 launch", "plain"]
    rows = [(name, f"{number} ms") for number, name in enumerate(names, 1)]
    lines = drawn(60, "", [("phase", LEFT), ("took", RIGHT)], rows, header=True)
    assert len({cell_len(line) for line in lines}) == 1
    assert [line.split()[-2:] for line in lines[1:]] == [[f"{number}", "ms"] for number in range(1, 6)]
    folded = drawn(40, "", [("phase", LEFT), ("took", RIGHT)], [("データ" * 20, "1 ms")])
    assert max(map(cell_len, folded)) <= 40
    assert "".join(line.replace("1 ms", "").strip() for line in folded) == "データ" * 20


CELLS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(40, 200),
    st.lists(st.tuples(CELLS, CELLS, st.integers(0, 10**15)), min_size=1, max_size=4),
    st.lists(st.sampled_from(("name", "other")), max_size=2, unique=True),
)
def test_any_table_fits_and_keeps_its_numbers(
    width: int, rows: list[tuple[str, str, int]], spare: list[str]
) -> None:
    cells = [(one, other, f"{number:,}") for one, other, number in rows]
    lines = drawn(
        width, "t", [("name", LEFT), ("other", FIXED), ("ns", RIGHT)], cells, header=True, spare=spare
    )
    assert max(map(cell_len, lines)) <= width
    if "other" in spare or width > 100:
        for *_, number in cells:
            assert any(re.search(rf"(^|\s){number}\s*$", line) for line in lines)


# --- Colours, width and encoding of what it is written to --------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "on_terminal", "elsewhere"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"CLICOLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"CLICOLOR_FORCE": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_colours_by_the_conventions(environ: dict[str, str], on_terminal: bool, elsewhere: bool) -> None:
    assert terminal.wants_color(Terminal(), environ) is on_terminal
    assert terminal.wants_color(io.StringIO(), environ) is elsewhere


@pytest.mark.parametrize(
    ("columns", "width"),
    [("", 110), ("64", 64), ("10", 40), ("0", 110), ("wide", 110), ("٣", 110), ("9" * 30, 1000)],
)
def test_columns_counts(columns: str, width: int) -> None:
    assert terminal.columns(io.StringIO(), {"COLUMNS": columns}) == width


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert not terminal.wants_color(stream, {})
    assert terminal.columns(stream, {}) == terminal.PLAIN_WIDTH


def test_a_terminal_without_our_characters_gets_ascii(tmp_path: Path) -> None:
    simulate(Training(epochs=1, steps_per_epoch=30, fetch_ns=39 * MS)).write_store(tmp_path)
    for encoding in ("ascii", "cp437"):
        done = subprocess.run(
            [GRADEML, str(tmp_path)],
            env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "60"},
            capture_output=True,
            check=True,
            timeout=60,
        )
        text = done.stdout.decode(encoding)
        assert "?" not in text
        assert "###" in text
        assert max(map(len, text.splitlines()[:20])) <= 60


def test_what_no_encoding_has_is_a_question_mark() -> None:
    assert encodable("1 · 2 … 3 × データ", "ascii") == "1 - 2 ... 3 x ???"
    assert encodable("1 · データ", "utf-8") == "1 · データ"
    assert encodable("1 · …", "latin-1") == "1 · ..."


# --- In notebooks ------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Collects the elements of a fragment, and fails where they are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def elements(fragment: str) -> Elements:
    found = Elements()
    found.feed(fragment)
    found.close()
    assert found.open == []
    return found


def test_a_notebook_shows_what_the_terminal_shows(answers: dict[str, Shown]) -> None:
    for name, answer in answers.items():
        fragment = answer._repr_html_()
        found = elements(fragment)
        words = set(re.findall(r"[\w.]+", answer.to_text(width=200)))
        assert words - {"no", "room"} <= set(re.findall(r"[\w.]+", found.text)), name
        assert {tag for tag, _ in found.seen} <= {
            "div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "pre", "code",
        }  # fmt: skip
        assert not [attrs for _, attrs in found.seen if {"href", "src", "onclick"} & set(attrs)]
        assert len(fragment) < 100_000


def test_the_verdict_and_the_completeness_come_first(answers: dict[str, Shown]) -> None:
    text = elements(answers["report killed"]._repr_html_()).text
    assert text.index("data") < text.index("VERDICT") < text.index("Where the")
    assert "#e5484d" in answers["report killed"]._repr_html_()  # how it ended, in red


def test_names_in_a_notebook_are_text(tmp_path: Path) -> None:
    document = jaeger_document("A[0,10)", service="<script>alert(1)</script>")
    document["data"][0]["spans"][0]["operationName"] = '"><img src=x onerror=alert(1)>&amp;\x1b[31m'
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(document))
    found = elements(analyzers.critical_path(path)._repr_html_())
    assert not {"script", "img"} & {tag for tag, _ in found.seen}
    assert '"><img src=x onerror=alert(1)>&amp;?[31m' in found.text
