"""What the dashboards are made of: a panel, a variable, a link, as the dictionaries that Grafana reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 41  # Grafana 11.6; newer ones migrate it when they load it
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
TAG = "gpuwatch"
CLUSTER = 'cluster=~"$cluster"'
POOL = CLUSTER + ',pool=~"$pool"'
AWAY = "no aggregator was scraped"

COLORS: Mapping[str, str] = {  # of a node's health
    "healthy": "green",
    "joining": "blue",
    "suspect": "yellow",
    "unknown": "#8e8e8e",
    "degraded": "orange",
    "driver_failed": "red",
    "dead": "dark-red",
    "absent": "purple",
}
STATES: Json = {
    "type": "value",
    "options": {name: {"text": name, "color": color, "index": n} for n, (name, color) in enumerate(COLORS.items())},
}
Step = tuple[float, str]


def zero_if_alive(expr: str) -> str:
    """A count without series is a zero only while an aggregator is there to count; else there is no value."""
    return f"{expr} or 0 * count(gpuwatch_aggregator_info{{{CLUSTER}}})"


def query(expr: str, legend: str = "", *, table: bool = False, instant: bool = False, ref: str = "A") -> Json:
    """One query. A table asks for one moment."""
    once = table or instant
    return {
        "refId": ref,
        "datasource": SOURCE,
        "expr": expr,
        "legendFormat": legend,
        "format": "table" if table else "time_series",
        "instant": once,
        "range": not once,
    }


def named(name: str, **properties: Any) -> Json:
    """An override of one field or series. In a property's name `__` is a dot."""
    made = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": made}


def colored(colors: Mapping[str, str]) -> list[Json]:
    """Each series in its own colour, the same on every dashboard."""
    return [named(name, color={"mode": "fixed", "fixedColor": color}) for name, color in colors.items()]


def health_column(name: str = "health") -> Json:
    """A table's column of healths, in their colours."""
    return named(name, mappings=[STATES], custom__cellOptions={"type": "color-background", "mode": "basic"})


def link(title: str, url: str) -> Json:
    """A link of a value or a cell."""
    return {"title": title, "url": url, "targetBlank": False}


def _panel(
    kind: str,
    title: str,
    says: str,
    queries: Sequence[Json],
    options: Json,
    *,
    empty: str,
    unit: str,
    custom: Json | None = None,
    steps: Sequence[Step] = (),
    overrides: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
    decimals: int | None = None,
    least: float | None = 0,
    most: float | None = None,
    mappings: Sequence[Json] = (),
    links: Sequence[Json] = (),
) -> Json:
    color = "thresholds" if steps else "palette-classic-by-name"
    defaults: Json = {"unit": unit, "noValue": empty, "color": {"mode": color}, "custom": custom or {}}
    base: list[Json] = [{"color": "text", "value": None}]
    if steps:
        base = [{"color": "green", "value": None}, *({"color": name, "value": at} for at, name in steps)]
    defaults["thresholds"] = {"mode": "absolute", "steps": base}
    for key, value in {"decimals": decimals, "min": least, "max": most}.items():
        if value is not None:
            defaults[key] = value
    if mappings:
        defaults["mappings"] = list(mappings)
    if links:
        defaults["links"] = list(links)
    return {
        "type": kind,
        "title": title,
        "description": says,
        "datasource": SOURCE,
        "targets": [one | {"refId": "ABCDEFGH"[n]} for n, one in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
        "transformations": list(transformations),
    }


def stat(
    title: str, says: str, *queries: Json, unit: str = "short", empty: str = AWAY, by_name: bool = False, **more: Any
) -> Json:
    """A big number. `by_name`: the series' name instead."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if more.get("steps") or more.get("mappings") else "value",
        "graphMode": "none",
        "justifyMode": "center",
        "orientation": "auto",
        "textMode": "name" if by_name else "auto",
        "percentChangeColorMode": "standard",
        "showPercentChange": False,
        "wideLayout": True,
    }
    return _panel("stat", title, says, queries, options, empty=empty, unit=unit, **more)


def over_time(
    title: str, says: str, *queries: Json, unit: str = "short", empty: str = AWAY, stacked: bool = False, **more: Any
) -> Json:
    """Lines, or a stack of them. A gap stays a gap."""
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 8,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, says, queries, options, empty=empty, unit=unit, custom=custom, **more)


def timeline(title: str, says: str, *queries: Json, empty: str = AWAY, **more: Any) -> Json:
    """A bar for each series while it is there."""
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
        "rowHeight": 0.8,
        "showValue": "never",
        "mergeValues": True,
    }
    return _panel("state-timeline", title, says, queries, options, empty=empty, unit="short", least=None,
                  custom={"fillOpacity": 85, "lineWidth": 0}, **more)  # fmt: skip


def bars(title: str, says: str, *queries: Json, unit: str = "short", empty: str = AWAY, **more: Any) -> Json:
    """One horizontal bar a series."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "displayMode": "basic",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "orientation": "horizontal",
        "namePlacement": "left",
        "showUnfilled": False,
        "sizing": "auto",
        "valueMode": "color",
        "minVizHeight": 16,
        "minVizWidth": 8,
        "maxVizHeight": 300,
    }
    return _panel("bargauge", title, says, queries, options, empty=empty, unit=unit, **more)


def table(
    title: str,
    says: str,
    expr: str,
    *,
    empty: str,
    columns: Sequence[str],
    value: str = "",
    unit: str = "short",
    **more: Any,
) -> Json:
    """One row a series: its labels in this order, then its value under that name, if it says something."""
    order = [*columns, "Value"]
    organize: Json = {
        "excludeByName": {"Time": True} | ({} if value else {"Value": True}),
        "indexByName": {name: n for n, name in enumerate(order)},
        "renameByName": {"Value": value} if value else {},
    }
    more.setdefault("transformations", [{"id": "organize", "options": organize}])
    options: Json = {"frameIndex": 0, "showHeader": True, "cellHeight": "sm"}
    if value:
        options["sortBy"] = [{"displayName": value, "desc": True}]
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    asked = [query(expr, table=True)]
    return _panel("table", title, says, asked, options, empty=empty, unit=unit, custom=custom, least=None, **more)


def variable(name: str, label: str, values: str, *, every: bool = True, hidden: bool = False) -> Json:
    """A choice out of Prometheus' label values."""
    made: Json = {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": values, "refId": name, "qryType": 1},
        "refresh": 2,
        "sort": 1,
        "hide": 2 if hidden else 0,
    }
    if every:
        made |= {
            "includeAll": True,
            "multi": True,
            "allValue": ".*",  # also series without the label: one cluster needs none
            "current": {"text": ["All"], "value": ["$__all"]},
        }
    return made


def address(name: str, label: str, value: str) -> Json:
    """An address that links begin with. `gpuwatch dashboards push` sets it; a URL of a dashboard cannot."""
    current = {"text": value, "value": value}
    return {
        "type": "constant",
        "name": name,
        "label": label,
        "query": value,
        "current": current,
        "hide": 2,
        "skipUrlSync": True,
    }


def dashboard(
    uid: str,
    title: str,
    says: str,
    variables: Sequence[Json],
    rows: Sequence[tuple[str, int, Sequence[tuple[int, Json]]]],
) -> Json:
    """`rows`: heading, height of its panels, and each panel with its width; a line is 24 wide."""
    panels: list[Json] = []
    top = 0
    for heading, height, line in rows:
        if heading:
            place = {"x": 0, "y": top, "w": 24, "h": 1}
            panels.append({"type": "row", "title": heading, "collapsed": False, "gridPos": place, "panels": []})
            top += 1
        left = 0
        for width, panel in line:
            panels.append(panel | {"gridPos": {"x": left, "y": top, "w": width, "h": height}})
            left += width
        assert left == 24, (title, heading, left)
        top += height
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    source: Json = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "description": says,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": _links(),
        "templating": {
            "list": [
                source,
                variable("cluster", "Cluster", "label_values(gpuwatch_aggregator_info, cluster)"),
                *variables,
                address("page", "gpuwatch's page", "http://127.0.0.1:9190"),
                address("runbooks", "Run-books", "docs/runbooks"),
            ]
        },
        "panels": panels,
    }


def _links() -> list[Json]:
    usual = {
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "tags": [],
        "tooltip": "",
    }
    others = usual | {"type": "dashboards", "title": "gpuwatch", "icon": "external link", "tags": [TAG]}
    page = usual | {"type": "link", "title": "gpuwatch's page", "icon": "bolt", "url": "${page}"}
    page |= {"includeVars": False, "keepTime": False, "targetBlank": True, "tooltip": "why, and what is done about it"}
    return [others, page]
