# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a real browser: what it shows, does when used, and never does."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers import api
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.graph.path import Path as CriticalPath
from grademl_otel.analyzers.graph.runs.run_path import run_path
from grademl_otel.analyzers.html.charts.path_chart import ONE_BY_ONE
from grademl_otel.analyzers.html.charts.scales import time_ticks
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import read_subject
from grademl_otel.analyzers.units import count, milliseconds, percent

from ..support.browser import Watched, watched
from ..support.hostile import MARK, hostile_run, hostile_traces
from ..support.synthetic import MS, Training, simulate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

TRAINING: Final = Training(
    ranks=2, epochs=2, steps_per_epoch=30, workers=2, fetch_ns=30 * MS, checkpoint_ns=20 * MS,
    compute_scale={1: 1.5},
)  # fmt: skip
LONG: Final = Training(ranks=1, epochs=3, steps_per_epoch=900, workers=0, eval_batches=20, detail_level=6)
TOLD: Final = """[...document.querySelectorAll("svg.area")].flatMap((svg) =>
    Array.from({length: 30}, () => {
        svg.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
        return document.querySelector(".tip").textContent;
    })
)"""
"""What is told of the first items of each chart."""
CONTRAST: Final = (Path(__file__).parent.parent / "support" / "contrast.js").read_text("utf-8")


@dataclass(frozen=True)
class Made:
    """A page, and the source that it is of."""

    page: Path
    source: Path


def page_of(source: Path, folder: Path) -> Made:
    page = folder / "report.html"
    assert run(["report", str(source), "-f", "html", "-o", str(page)]) == 0
    return Made(page, source)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two ranks, the second slow; its sections are drawn one by one."""
    folder = tmp_path_factory.mktemp("short")
    return page_of(simulate(TRAINING).write_store(folder), folder)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Of so many steps that they are in bins."""
    folder = tmp_path_factory.mktemp("long")
    return page_of(simulate(LONG).write_store(folder), folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    made = []
    for write in (hostile_run, hostile_traces, lambda folder: hostile_traces(folder, 12)):
        folder = tmp_path_factory.mktemp("hostile")
        made.append(page_of(write(folder), folder))
    return made


@contextmanager
def clean(browser: Browser, page: Path, **options: Any) -> Iterator[Watched]:
    """Open a page, which must neither complain nor ask for anything until it is closed."""
    with watched(browser, page, **{"reduced_motion": "reduce", **options}) as seen:
        yield seen
        assert seen.errors == []
        assert seen.requests == []


def data_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.locator("#charts-data").inner_text())
    return found


def ticks(page: Page, chart: str) -> list[str]:
    return page.locator(f"#{chart}-svg .time text").all_text_contents()


def path_of(made: Made) -> CriticalPath:
    about = read_subject(Query.of(str(made.source)))
    assert about.run is not None
    return run_path(about.run)


# --- What it shows ----------------------------------------------------------------------------------------


def test_it_shows_everything_and_asks_for_nothing(browser: Browser, short: Made) -> None:
    with clean(browser, short.page) as seen:
        page = seen.page
        for chart in ("budget", "path", "steps", "distribution"):
            assert page.locator(f"#chart-{chart} svg.area").is_visible()
        sections = path_of(short).sections
        assert int(np.count_nonzero(sections.duration)) < ONE_BY_ONE
        drawn = page.locator("#path-svg .marks > g:not(.striped) > rect").count()
        assert drawn == np.count_nonzero(sections.duration)
        assert page.locator("#steps-svg .marks circle").count() == 2 * 60
        assert page.locator("#budget-svg rect[data-tip]").count() == len(api.report(short.source).lane_budget)


def test_the_policy_lets_nothing_run_that_is_not_in_it(browser: Browser, short: Made) -> None:
    """Against `clean`: it does see what a page must not do."""
    with watched(browser, short.page) as seen:
        seen.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.body.append(script);
                document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}));
                document.body.setAttribute("style", "color: red");
            }"""
        )
        assert seen.page.evaluate("window.ran") is None
        assert sum("Content Security Policy" in error for error in seen.errors) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(browser: Browser, short: Made, scheme: str) -> None:
    with clean(browser, short.page, color_scheme=scheme) as seen:
        seen.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        texts = seen.page.evaluate(CONTRAST)
        assert len(texts) > 100
        assert [one for one in texts if one["contrast"] < 4.5] == []


def test_light_and_dark(browser: Browser, short: Made) -> None:
    with clean(browser, short.page, color_scheme="light") as seen:
        page = seen.page

        def paper_and_forward() -> list[str]:
            found: list[str] = page.evaluate(
                "[getComputedStyle(document.body).backgroundColor,"
                " getComputedStyle(document.querySelector('#budget-svg .p-forward')).fill]"
            )
            return found

        light = paper_and_forward()
        page.locator("[data-do=theme]").click()
        dark = paper_and_forward()
        assert light[0] != dark[0]
        assert light[1] != dark[1]
        page.locator("[data-do=theme]").click()
        assert paper_and_forward() == light
        page.emulate_media(color_scheme="dark")
        assert paper_and_forward() == light, "what was chosen stays"
    with clean(browser, short.page, color_scheme="dark") as seen:
        page = seen.page
        assert paper_and_forward() == dark


def test_a_phone_need_not_be_scrolled_sideways(browser: Browser, short: Made, hostile: list[Made]) -> None:
    for made in (short, *hostile):
        with clean(browser, made.page, viewport={"width": 320, "height": 700}) as seen:
            page = seen.page
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            for width in (320, 390):
                page.set_viewport_size({"width": width, "height": 700})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
            sizes = page.evaluate(
                "[...document.querySelectorAll('svg.area text')]"
                ".map((one) => one.getBoundingClientRect().height).filter((height) => height > 0)"
            )
            assert min(sizes) >= 8, "letters are as large as on a desk"


def test_on_paper_all_is_open_and_light(browser: Browser, short: Made) -> None:
    with clean(browser, short.page, color_scheme="dark") as seen:
        page = seen.page
        closed = page.locator("details:not([open])").count()
        assert closed
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        assert page.locator("#path-data").is_visible()
        assert page.locator("[data-zoom]:visible, [data-do]:visible").count() == 0
        assert page.locator("#chart-path .legend").is_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details:not([open])").count() == closed
        assert page.pdf().startswith(b"%PDF")


def test_without_a_script_it_can_be_read(browser: Browser, short: Made, long: Made) -> None:
    for made in (short, long):
        with clean(browser, made.page, java_script_enabled=False) as seen:
            page = seen.page
            for chart in ("budget", "path", "steps", "distribution"):
                assert page.locator(f"#{chart}-svg").is_visible()
                assert page.locator(f"#{chart}-svg rect").count() > 0
            assert page.locator("button:visible").count() == 0
            page.locator("#chart-path summary").click()
            assert page.locator("#path-data").is_visible()


def test_script_and_python_draw_the_same(browser: Browser, short: Made, long: Made) -> None:
    """What stands there before the script is what it draws first."""
    for made in (short, long):
        with (
            clean(browser, made.page) as drawn,
            clean(browser, made.page, java_script_enabled=False) as still,
        ):
            for chart in ("path", "steps"):
                assert ticks(drawn.page, chart) == ticks(still.page, chart)
                marks = f"#{chart}-svg .marks"
                assert shapes(drawn.page, marks) == pytest.approx(shapes(still.page, marks), abs=0.02)
            strips = "#steps-svg .strips"
            assert shapes(drawn.page, strips) == pytest.approx(shapes(still.page, strips), abs=0.02)


def shapes(page: Page, within: str) -> list[float]:
    """x, y, width and height of all shapes, in the order of their groups; percent or px."""
    source = page.locator(within).inner_html()
    return [
        float(value.rstrip("%"))
        for name in ("x", "y", "width", "height", "cx", "cy")
        for value in sorted(part.split('"')[0] for part in source.split(f' {name}="')[1:])
        if value
    ]


# --- What it does -----------------------------------------------------------------------------------------


def test_zoom_by_button_changes_axis_and_what_is_in_view(browser: Browser, short: Made) -> None:
    path = path_of(short)
    begins = path.sections.start[path.sections.duration > 0] - path.start
    ends = np.append(begins[1:], path.total_ns)
    with clean(browser, short.page) as seen:
        page = seen.page
        before = ticks(page, "path")
        assert before == [label for _, label in time_ticks(0, path.total_ns)]
        page.locator("#chart-path [data-zoom=in]").click()
        page.locator("#chart-path [data-zoom=in]").click()
        length = round(path.total_ns / 4)
        start = round(path.total_ns * 3 / 8)
        assert ticks(page, "path") == [label for _, label in time_ticks(start, start + length)] != before
        assert ticks(page, "steps") == ticks(page, "path"), "both show the same time"
        drawn = page.locator("#path-svg .marks > g:not(.striped) > rect").count()
        inside = np.count_nonzero((begins < start + length) & (ends > start))
        assert abs(drawn - inside) <= 1, "one that ends where the view begins may count"
        page.locator("#chart-steps [data-zoom=whole]").click()
        assert ticks(page, "path") == before


def test_zoom_by_keyboard(browser: Browser, short: Made) -> None:
    with clean(browser, short.page) as seen:
        page = seen.page
        before = ticks(page, "path")
        page.locator("#path-svg").focus()
        page.keyboard.press("+")
        page.keyboard.press("+")
        middle = ticks(page, "path")
        assert middle != before
        page.keyboard.press("PageDown")
        later = ticks(page, "path")
        assert later != middle
        page.keyboard.press("PageUp")
        assert ticks(page, "path") == middle
        page.keyboard.press("-")
        page.keyboard.press("0")
        assert ticks(page, "path") == before


def test_the_wheel_zooms_with_ctrl_only(browser: Browser, short: Made) -> None:
    with clean(browser, short.page) as seen:
        page = seen.page
        before = ticks(page, "path")
        page.locator("#path-svg").hover()
        page.mouse.wheel(0, -200)
        page.wait_for_function("scrollY >= 0")
        assert ticks(page, "path") == before
        page.locator("#path-svg").hover()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        page.wait_for_function(
            "before => document.querySelector('#path-svg .time').textContent !== before", arg="".join(before)
        )


def test_dragging_moves_what_is_in_view(browser: Browser, short: Made) -> None:
    with clean(browser, short.page) as seen:
        page = seen.page
        page.locator("#chart-path [data-zoom=in]").click()
        before = page.locator("#chart-path .range").inner_text()
        box = page.locator("#path-svg").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 25)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 25)
        page.mouse.up()
        assert page.locator("#chart-path .range").inner_text() != before


def test_what_is_looked_at_is_told_as_it_is(browser: Browser, short: Made) -> None:
    """By keyboard section after section, by mouse the same."""
    path = path_of(short)
    sections = path.sections.take(np.flatnonzero(path.sections.duration > 0))
    with clean(browser, short.page) as seen:
        page = seen.page
        page.locator("#path-svg").focus()
        tip = page.locator(".tip")
        assert tip.is_hidden()
        for at in range(4):
            page.keyboard.press("ArrowRight")
            section = sections[at]
            kind = "" if section.kind == "work" else f" ({section.kind})"
            told = tip.inner_text().split("\n")
            assert told[0] == f"{section.phase}{kind}: {milliseconds(section.duration)}"
            assert told[1] == f"rank {section.rank} · {section.lane}"
            assert told[-1].endswith(f"{percent(section.duration / path.total_ns)} of the path")
        page.keyboard.press("Escape")
        assert tip.is_hidden()
        page.keyboard.press("Home")
        by_key, box = tip.inner_text(), page.locator("#path-svg .looked-at").bounding_box()
        assert box is not None
        page.keyboard.press("Escape")
        assert tip.is_hidden()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert tip.inner_text() == by_key


def test_bars_are_told_by_keyboard(browser: Browser, short: Made) -> None:
    budget = api.report(short.source).lane_budget
    with clean(browser, short.page) as seen:
        page = seen.page
        page.locator("#budget-svg").focus()
        page.keyboard.press("ArrowRight")
        first = budget[0]
        assert page.locator(".tip").inner_text() == (
            f"rank 0 · {first.phase}: {milliseconds(first.ns)}, {percent(first.share)}"
        )


def test_the_legend_leaves_only_what_it_names(browser: Browser, short: Made) -> None:
    with clean(browser, short.page) as seen:
        page = seen.page
        entry = page.locator("#chart-path .legend button", has_text="data.fetch")
        entry.click()
        assert entry.get_attribute("aria-pressed") == "true"
        assert page.locator("#path-svg .marks > g.p-data-fetch.dimmed").count() == 0
        assert page.locator("#path-svg .marks > g.p-forward.dimmed").count() == 1
        entry.press("Enter")
        assert page.locator("#path-svg .dimmed").count() == 0


def test_bins_become_finer_with_zoom(browser: Browser, long: Made) -> None:
    with clean(browser, long.page) as seen:
        page = seen.page
        data = data_of(page)
        levels = data["steps"]["levels"]
        assert [level["bins"] for level in levels] == sorted({level["bins"] for level in levels})
        assert page.locator("#steps-svg .s-spread rect").count() == len(levels[0]["bin"])
        for _ in range(4):
            page.locator("#chart-steps [data-zoom=in]").click()
        start, end = data["steps"]["total"] * 15 / 32, data["steps"]["total"] * 17 / 32
        finest = levels[-1]
        inside = [
            bin
            for bin in finest["bin"]
            if (bin + 1) * data["steps"]["total"] / finest["bins"] > start
            and bin * data["steps"]["total"] / finest["bins"] < end
        ]
        assert page.locator("#steps-svg .s-spread rect").count() == len(inside)
        drawn = page.locator("#steps-svg .s-spread rect").nth(len(inside) // 2)
        at = finest["bin"].index(inside[len(inside) // 2])
        drawn.scroll_into_view_if_needed()
        box = drawn.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 14)
        told = page.locator(".tip").inner_text().split("\n")
        assert told[0].startswith(count(finest["count"][at], "step"))
        assert told[1] == f"step {finest['first'][at]:,} to {finest['last'][at]:,}"
        assert told[2] == f"median {milliseconds(finest['p50'][at])}, 95 % {milliseconds(finest['p95'][at])}"


# --- What it hands over -----------------------------------------------------------------------------------


def test_the_saved_document_is_that_of_json(
    browser: Browser, short: Made, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capsys.readouterr()
    assert run(["report", str(short.source), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    with clean(browser, short.page) as seen:
        with seen.page.expect_download() as download:
            seen.page.locator("[data-do=save-json]").first.click()
        download.value.save_as(tmp_path / "report.json")
    assert download.value.suggested_filename.endswith(".json")
    saved = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert saved == printed


def test_saved_tables_hold_exact_values(browser: Browser, short: Made, tmp_path: Path) -> None:
    with clean(browser, short.page) as seen:
        page = seen.page
        page.locator("#chart-path summary").click()
        with page.expect_download() as download:
            page.locator("[data-table=path-data]").click()
        download.value.save_as(tmp_path / "path.csv")
    rows = list(csv.DictReader((tmp_path / "path.csv").read_text("utf-8").splitlines()))
    assert sum(int(row["path_ns"]) for row in rows) == path_of(short).total_ns
    assert {row["phase"] for row in rows} >= {sc.DATA_FETCH, sc.FORWARD}


def test_saved_tables_hold_no_formulas(browser: Browser, hostile: list[Made], tmp_path: Path) -> None:
    with clean(browser, hostile[1].page) as seen:
        page = seen.page
        page.locator("#chart-path summary").click()
        with page.expect_download() as download:
            page.locator("[data-table=path-data]").click()
        download.value.save_as(tmp_path / "path.csv")
    text = (tmp_path / "path.csv").read_text("utf-8")
    fields = [field for row in csv.reader(text.splitlines()) for field in row]
    assert any(field.startswith("'=HYPERLINK(") for field in fields)
    assert not any(field.startswith(("=", "@", "+", "-")) for field in fields)


# --- What it never does -----------------------------------------------------------------------------------


def test_names_are_only_ever_text(browser: Browser, short: Made, hostile: list[Made]) -> None:
    inventory = "[...document.querySelectorAll('*')].map((one) => one.tagName.toLowerCase())"
    with clean(browser, short.page) as seen:
        usual = set(seen.page.evaluate(inventory))
        scripts = seen.page.locator("script").count()
    dialogs: list[str] = []

    def refuse(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    for made in hostile:
        with clean(browser, made.page) as seen:
            page = seen.page
            page.on("dialog", refuse)
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            told = page.evaluate(TOLD)
            assert all(told)
            assert any(MARK in text for text in told) or made is hostile[2]
            found = page.evaluate(inventory)
            assert set(found) <= usual | {"ol", "strong", "em"}
            assert found.count("script") == scripts
            assert page.evaluate(
                "[...document.querySelectorAll('*')].flatMap((one) => [...one.attributes])"
                ".filter((one) => one.name.startsWith('on') || /^javascript:/i.test(one.value)).length"
            ) == 0  # fmt: skip
            text = page.evaluate("document.body.innerText")
            assert text.count(MARK) > 5
            assert not set(text) & set("\u202e\u2066\u2028\x1b\x00")
            assert any(markup in text for markup in ("<script>alert(1)", "<svg onload=", "<img src=x"))
    assert dialogs == []
