# SPDX-License-Identifier: Apache-2.0
"""`grademl resources` has the same numbers in every form: text, JSON, CSV, page, SQL, Perfetto; a browser."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from grademl_otel import analyzers
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.exports import perfetto
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import read_subject
from tests.support.browser import watched
from tests.support.html_page import Element, read_page
from tests.support.monitored import export, series, simulate, with_table

from .test_resources import TWO, N

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CONTRAST: Final = (Path(__file__).parent.parent / "support" / "contrast.js").read_text("utf-8")
GPU: Final = "/host[name=node-0]/gpu[id=GPU-a]"
SCALES: Final = {
    "": 1, "%": 0.01, "cpu": 1, "cpu s": 1, "s": 1, "ms": 1e-3,
    "W": 1, "kW": 1e3, "J": 1, "kJ": 1e3, "W s": 1,
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
    "B/s": 1, "KiB/s": 2**10, "MiB/s": 2**20, "GiB/s": 2**30,
}  # fmt: skip


@dataclass(frozen=True)
class Forms:
    """One run, and what `grademl resources` says of it."""

    store: Path
    text: str
    json: dict[str, Any]
    rows: list[dict[str, str]]
    page: Path


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    """A run with tables of the sampler, and with a metric that something else sent as points."""
    folder = tmp_path_factory.mktemp("forms")
    sim = simulate(TWO)
    with_table(
        sim,
        [
            ("gpu", "utilization", "GPU-a", [1000, 700, 1000, 400, 1000, 900, 1000, 960, 1000, 100], 1000),
            ("cpu", "busy", "", [2000 + 300 * ix for ix in range(N)], 8000),
            ("disk", "read", "nvme0", [400_000_000 - 9_000_000 * ix for ix in range(N)], None),
        ],
    )
    store = sim.write_store(folder / "runs")
    power = {at: 200.0 + 10 * at for at in range(N + 1)}
    line = export(series("hw.power", "W", "gauge", power, hw__id="GPU-a", hw__type="gpu"))
    (store.parent / "metrics.jsonl").write_bytes(line)
    out = {form: folder / f"resources.{form}" for form in ("text", "json", "csv", "html")}
    for form, file in out.items():
        assert run(["resources", str(store), "-f", form, "-o", str(file)]) == 0
    text, found, rows = (out[form].read_text("utf-8") for form in ("text", "json", "csv"))
    return Forms(store, text, json.loads(found), list(csv.DictReader(io.StringIO(rows))), out["html"])


def number(words: str) -> float | None:
    """Return the number of what people read; None for what is not known."""
    found = re.fullmatch(r"<?([\d.,]+) ?(.*)", words.strip())
    return None if found is None else float(found[1].replace(",", "")) * SCALES[found[2]]


def near(shown: float | None, exact: float | None) -> bool:
    """Whether what is shown is the exact value, but for the digits that are not shown."""
    if shown is None or exact is None:
        return shown is exact
    return shown == pytest.approx(exact, rel=0.06, abs=0.006)


def table(text: str, title: str) -> list[list[str]]:
    """Return the cells of the rows below the headings of a table of a text."""
    lines = text.split(title, 1)[1].splitlines()[2:]
    return [re.split(r"  +", line) for line in lines[: lines.index("")]]


def test_the_text_has_the_numbers_of_the_json(forms: Forms) -> None:
    of, shown = "", 0
    for cells in table(forms.text, "Use by phase"):
        of, (metric, mean, utilization, used, share) = cells[0] or of, cells[1:]
        (one,) = (
            each
            for each in forms.json["use"]
            if each["metric"] == metric and each["key"].endswith(f"attempt/{of}")
        )
        assert near(number(mean), one["mean"])
        assert near(number(utilization), one["utilization"])
        assert near(number(used), one["used"])
        assert near(number(share), one["share"])
        shown += 1
    assert shown >= 8


def test_the_csv_has_the_numbers_of_the_json(forms: Forms) -> None:
    assert len(forms.rows) == len(forms.json["use"]) > 8
    for row, one in zip(forms.rows, forms.json["use"], strict=True):
        for name in ("used", "available", "utilization", "mean", "share", "observed_ns"):
            assert row[name] == ("" if one[name] is None else row[name])
            assert one[name] is None or float(row[name]) == one[name]


def test_the_page_has_the_numbers_of_the_json(forms: Forms) -> None:
    root = read_page(forms.page.read_text("utf-8")).root
    carried = root.by_id("report-data")
    assert carried is not None
    assert json.loads("".join(map(str, carried.children))) == forms.json
    for name, columns in (("use", ("mean", "utilization", "used", "share")), ("metrics", ("mean", "peak"))):
        entries, rows = forms.json[name], rows_of(root, name)
        assert len(rows) == len(entries) > 0
        for cells, one in zip(rows, entries, strict=True):
            assert cells[1] == one["metric"]
            for column, words in zip(columns, cells[3:], strict=False):
                assert near(number(words), one[column]), (name, column)


def rows_of(root: Element, name: str) -> list[list[str]]:
    found = root.by_id(name)
    assert found is not None
    (body,) = found.all("tbody")
    return [[cell.text.strip() for cell in row.all("td", "th")] for row in body.all("tr")]


def test_the_tables_of_sql_have_the_numbers_of_the_json(forms: Forms) -> None:
    with analyzers.database(forms.store) as session:
        sums = {
            tuple(row[:2]): row[2:]
            for row in session.query(
                "SELECT type, metric, sum(used), sum(available), sum(observed_ns), min(amount)"
                " FROM attributed WHERE phase_ix IS NOT NULL GROUP BY ALL"
            ).rows
        }
        assert sums.keys() == {(one["key"], one["metric"]) for one in forms.json["use"]}
        for one in forms.json["use"]:
            used, available, observed, least = sums[one["key"], one["metric"]]
            assert used == pytest.approx(one["used"], rel=1e-9)
            if least > 0 or available is None:
                assert available == (None if one["available"] is None else pytest.approx(one["available"]))
            else:  # each leaf that wants nothing could have had all, and several of them no more than one
                assert 0 < one["available"] < available
            assert observed == pytest.approx(one["observed_ns"], abs=100)
        nobodys = dict(session.query("SELECT metric, used FROM attributed WHERE phase_ix IS NULL").rows)
        for one in forms.json["metrics"]:
            assert nobodys[one["metric"]] == pytest.approx(one["unattributed"], abs=1e-9 * one["used"])
        points = session.query("SELECT time_ns, value FROM metrics WHERE name = 'hw.power' ORDER BY 1").rows
    power = metric(forms, "gpu.power")
    time, value = (np.array(column) for column in zip(*points, strict=True))
    # A sample is what was since the one before it.
    assert power["mean"] == pytest.approx(np.average(value[1:], weights=np.diff(time)), rel=1e-9)
    assert power["peak"] == value.max()


def metric(forms: Forms, name: str) -> dict[str, Any]:
    (found,) = (one for one in forms.json["metrics"] if one["metric"] == name)
    return dict(found)


def test_the_counters_of_a_trace_have_the_numbers_of_the_json(forms: Forms) -> None:
    file = io.BytesIO()
    perfetto.write(read_subject(Query.of(str(forms.store))), file)
    trace = Trace()
    trace.ParseFromString(file.getvalue())
    names = {
        one.track_descriptor.uuid: one.track_descriptor.name
        for one in trace.packet
        if one.HasField("track_descriptor") and one.track_descriptor.HasField("counter")
    }
    values: dict[str, list[float]] = {}
    for packet in trace.packet:
        event = packet.track_event
        if event.track_uuid in names:
            whole = not event.HasField("double_counter_value")
            values.setdefault(names[event.track_uuid], []).append(
                event.counter_value if whole else event.double_counter_value
            )
    for track, name in (
        ("gpu[id=GPU-a] utilization", "gpu.utilization"),
        ("cpu busy", "cpu.busy"),
        ("disk[id=nvme0] read", "disk.read"),
    ):
        assert len(values[track]) == N
        assert np.mean(values[track]) == pytest.approx(metric(forms, name)["mean"], rel=1e-9)
        assert max(values[track]) == pytest.approx(metric(forms, name)["peak"], rel=1e-9)


# --- In a browser -------------------------------------------------------------------------------------------


def test_a_browser_shows_the_numbers_of_the_json_and_asks_for_nothing(
    browser: Browser, forms: Forms, tmp_path: Path
) -> None:
    with watched(browser, forms.page) as seen:
        page = seen.page
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for chart in ("bottlenecks", "use-gpu-utilization", "use-cpu-busy", "use-disk-read", "use-gpu-power"):
            assert page.locator(f"#chart-{chart} svg").first.is_visible(), chart
        rows = page.locator("#use tbody tr")
        assert rows.count() == len(forms.json["use"])
        for cells, one in zip(rows.all(), forms.json["use"], strict=True):
            shown = [cell.strip() for cell in cells.locator("th, td").all_inner_texts()]
            assert shown[:2] == [one["key"], one["metric"]]
            assert near(number(shown[3]), one["mean"])
            assert near(number(shown[5]), one["used"])
        with page.expect_download() as download:
            page.locator("[data-do=save-json]").first.click()
        download.value.save_as(tmp_path / "saved.json")
        assert json.loads((tmp_path / "saved.json").read_text("utf-8")) == forms.json
        assert seen.errors == []
        assert seen.requests == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_it_and_all_can_be_read(
    browser: Browser, forms: Forms, scheme: str
) -> None:
    size = {"width": 360, "height": 740}
    with watched(browser, forms.page, viewport=size, color_scheme=scheme, reduced_motion="reduce") as seen:
        page = seen.page
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        texts = page.evaluate(CONTRAST)
        assert len(texts) > 50
        assert [one for one in texts if one["contrast"] < 4.5] == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 127
        assert light == (scheme == "light")
        assert seen.errors == []
        assert seen.requests == []
