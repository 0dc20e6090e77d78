# SPDX-License-Identifier: Apache-2.0
"""The JSON of Grafana dashboards: panels, variables and a page that lays them out. No query is known here.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

SCHEMA_VERSION: Final = 41
"""Of Grafana 12; later ones bring it up to theirs when they load it."""
COLUMNS: Final = 24
PROMETHEUS: Final = {"type": "prometheus", "uid": "${metrics}"}
TEMPO: Final = {"type": "tempo", "uid": "${traces}"}


@dataclass(frozen=True)
class Query:
    """A query in PromQL, and what its series are called: a text with labels as ``{{label}}``."""

    expr: str
    legend: str = ""
    instant: bool = False
    heatmap: bool = False


@dataclass(frozen=True)
class TraceQuery:
    """A search for traces in TraceQL, which Tempo answers."""

    query: str
    limit: int = 20


@dataclass(frozen=True)
class Panel:
    """One panel; `width` of `COLUMNS`, `height` in rows of the grid."""

    title: str
    about: str
    """What is shown, in which unit, and what a high or a low value means."""
    queries: Sequence[Query | TraceQuery]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    low: float | None = 0
    high: float | None = None
    steps: Sequence[tuple[float, str]] = ()
    """Limits from which a value has a colour."""
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A heading, and what is under it."""

    title: str
    panels: Sequence[Panel]


def dashboard(
    uid: str,
    title: str,
    about: str,
    variables: Sequence[Json],
    rows: Sequence[Row],
    links: Sequence[Json] = (),
) -> Json:
    """Return a page with the rows one below the other; panels are put side by side as long as they fit."""
    panels: list[Json] = []
    top = 0
    for row in rows:
        panels.append(
            {
                "type": "row",
                "id": len(panels) + 1,
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["grademl"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": list(links),
        "annotations": {"list": []},
        "templating": {"list": list(variables)},
        "panels": panels,
    }


def data_source(name: str, kind: str, label: str, uid: str) -> Json:
    """A variable that chooses a data source; ``uid`` is the one that is provisioned here."""
    return {
        "type": "datasource",
        "name": name,
        "label": label,
        "query": kind,
        "current": {"selected": True, "text": label, "value": uid},
        "hide": 2,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "regex": "",
        "options": [],
    }


def label_values(name: str, label: str, title: str, selector: str, *, multi: bool = True) -> Json:
    """A variable with the values of ``label`` in the series of ``selector``; all of them to begin with."""
    query = f"label_values({selector}, {label})"
    return {
        "type": "query",
        "name": name,
        "label": title,
        "datasource": PROMETHEUS,
        "definition": query,
        "query": {"query": query, "refId": name},
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "includeAll": True,
        "allValue": ".*",  # also what has no such label
        "multi": multi,
        "refresh": 2,  # when the time range changes
        "regex": "",
        "sort": 3,  # as numbers
        "hide": 0,
        "options": [],
    }


def link(title: str, url: str) -> Json:
    """A link at the top of the page, to be opened beside it."""
    return {
        "type": "link",
        "title": title,
        "url": url,
        "targetBlank": True,
        "icon": "external link",
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "tooltip": "",
    }


def pages(title: str) -> Json:
    """Links to the other dashboards, with their variables and time range kept."""
    return {
        "type": "dashboards",
        "title": title,
        "url": "",
        "tags": ["grademl"],
        "asDropdown": False,
        "targetBlank": False,
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "tooltip": "",
    }


def _panel(panel: Panel, number: int, place: Json) -> Json:
    custom: Json = {}
    if panel.kind == "timeseries":
        custom = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stacked else 0,
            "spanNulls": False,
            "showPoints": "auto",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    defaults: Json = {"unit": panel.unit, "custom": custom}
    if panel.low is not None:
        defaults["min"] = panel.low
    if panel.high is not None:
        defaults["max"] = panel.high
    if panel.steps:
        steps = [
            {"color": "green", "value": None},
            *({"color": colour, "value": value} for value, colour in panel.steps),
        ]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["color"] = {"mode": "thresholds"}
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": TEMPO if isinstance(panel.queries[0], TraceQuery) else PROMETHEUS,
        "targets": [_target(query, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": list(panel.overrides)},
        "options": {**_OPTIONS.get(panel.kind, {}), **panel.options},
        "transformations": list(panel.transformations),
    }


def _target(query: Query | TraceQuery, index: int) -> Json:
    name = chr(ord("A") + index)
    if isinstance(query, TraceQuery):
        return {
            "refId": name,
            "datasource": TEMPO,
            "queryType": "traceql",
            "query": query.query,
            "limit": query.limit,
            "tableType": "traces",
        }
    return {
        "refId": name,
        "datasource": PROMETHEUS,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": "heatmap" if query.heatmap else "table" if query.instant else "time_series",
        "instant": query.instant,
        "range": not query.instant,
    }


_OPTIONS: Final[Mapping[str, Json]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
    },
    "bargauge": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
    },
    "heatmap": {"calculate": False, "yAxis": {"unit": "s"}, "color": {"mode": "scheme", "scheme": "Blues"}},
}
