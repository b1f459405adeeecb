"""Dashboards, rows and panels, and their JSON in Grafana.

Fields and types: `Dashboard` in the npm package @grafana/schema.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Grafana migrates older versions of the format. This is the one of Grafana 11.
SCHEMA_VERSION = 39

# The grid has 24 columns.
GRID_WIDTH = 24

ALL = {"text": "All", "value": "$__all"}

REF_IDS = "ABCDEFGH"


class PanelType(StrEnum):
    GRAPH = "timeseries"
    STAT = "stat"
    TABLE = "table"
    BARS = "barchart"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data source, which a variable of the dashboard selects."""

    type: str

    @property
    def reference(self) -> dict[str, str]:
        return {"type": self.type, "uid": "${datasource}"}


PROMETHEUS = Source(type="prometheus")
POSTGRES = Source(type="grafana-postgresql-datasource")


@dataclass(frozen=True)
class Query:
    """A PromQL expression with the name of its series, or a SQL query."""

    text: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel.

    Attributes:
        title: Heading of the panel.
        help: What to read from it, and what to do.
        queries: What it shows.
        unit: Grafana's name of the unit.
        type: How it shows the values.
        width: Columns of the grid.
        height: Rows of the grid.
        thresholds: Values from which the panel is orange, and red.
        is_stacked: Whether the areas of a graph add up.
        column_units: Units of columns of a table.
    """

    title: str
    help: str
    queries: tuple[Query, ...]
    unit: str = "short"
    type: PanelType = PanelType.GRAPH
    width: int = 8
    height: int = 8
    thresholds: tuple[float, ...] = ()
    is_stacked: bool = False
    column_units: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A heading, and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A list from which the viewer selects. `query` returns its values."""

    name: str
    label: str
    query: str
    is_multiple: bool = True


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Marks on the time axis, wherever the expression has a value."""

    title: str
    query: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A dashboard of one data source."""

    uid: str
    title: str
    help: str
    source: Source
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()
    refresh: str = "30s"

    def build(self) -> dict[str, Any]:
        """Return the JSON."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.help,
            "tags": ["graphile-worker"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": self.refresh,
            "time": {"from": "now-3h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "weekStart": "",
            "fiscalYearStartMonth": 0,
            "links": [],
            "templating": {
                "list": [self._build_source_variable(), *map(self._build_variable, self.variables)]
            },
            "annotations": {"list": [self._build_annotation(each) for each in self.annotations]},
            "panels": self._build_panels(),
        }

    def _build_panels(self) -> list[dict[str, Any]]:
        panels: list[dict[str, Any]] = []
        y = 0
        for row in self.rows:
            position = {"h": 1, "w": GRID_WIDTH, "x": 0, "y": y}
            panels.append(_build_row(row, len(panels) + 1, position))
            y += 1
            x = line_height = 0
            for panel in row.panels:
                if x + panel.width > GRID_WIDTH:
                    x, y, line_height = 0, y + line_height, 0
                position = {"h": panel.height, "w": panel.width, "x": x, "y": y}
                panels.append(self._build_panel(panel, len(panels) + 1, position))
                x, line_height = x + panel.width, max(line_height, panel.height)
            y += line_height
        return panels

    def _build_panel(self, panel: Panel, id: int, position: dict[str, int]) -> dict[str, Any]:
        return {
            "id": id,
            "type": panel.type.value,
            "title": panel.title,
            "description": panel.help,
            "datasource": self.source.reference,
            "gridPos": position,
            "targets": [
                self._build_target(query, REF_IDS[number], panel.type)
                for number, query in enumerate(panel.queries)
            ],
            "fieldConfig": {"defaults": _build_field(panel), "overrides": _build_overrides(panel)},
            "options": _build_options(panel),
        }

    def _build_target(self, query: Query, ref_id: str, type: PanelType) -> dict[str, Any]:
        target: dict[str, Any] = {"refId": ref_id, "datasource": self.source.reference}
        if self.source is POSTGRES:
            is_graph = type is PanelType.GRAPH
            return target | {
                "editorMode": "code",
                "format": "time_series" if is_graph else "table",
                "rawQuery": True,
                "rawSql": query.text,
            }
        is_table = type is PanelType.TABLE
        return target | {
            "editorMode": "code",
            "expr": query.text,
            "legendFormat": query.legend,
            "format": "table" if is_table else "time_series",
            # A table and a number show the last value.
            "instant": type is not PanelType.GRAPH,
            "range": type is PanelType.GRAPH,
        }

    def _build_source_variable(self) -> dict[str, Any]:
        return {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": self.source.type,
            "refresh": 1,
            "hide": 0,
            "multi": False,
            "includeAll": False,
            "options": [],
        }

    def _build_variable(self, variable: Variable) -> dict[str, Any]:
        is_sql = self.source is POSTGRES
        return {
            "name": variable.name,
            "label": variable.label,
            "type": "query",
            "datasource": self.source.reference,
            "query": variable.query
            if is_sql
            else {"query": variable.query, "refId": variable.name},
            # When the time range changes, as names appear over time.
            "refresh": 2,
            "sort": 1,
            "hide": 0,
            "regex": "",
            "multi": variable.is_multiple,
            "includeAll": variable.is_multiple,
            # Also matches series without the label.
            **({"allValue": ".*", "current": ALL} if variable.is_multiple else {}),
            "options": [],
        }

    def _build_annotation(self, annotation: Annotation) -> dict[str, Any]:
        return {
            "name": annotation.title,
            "datasource": self.source.reference,
            "enable": True,
            "hide": False,
            "iconColor": "blue",
            "target": {"refId": "A", "expr": annotation.query, "interval": "60s"},
            "titleFormat": annotation.title,
            "textFormat": annotation.text,
        }


def _build_row(row: Row, id: int, position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": id,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": position,
        "panels": [],
    }


def _build_field(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    for color, value in zip(("orange", "red"), panel.thresholds, strict=False):
        steps.append({"color": color, "value": value})
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.type is PanelType.STAT else "palette-classic"},
    }
    if panel.type is PanelType.GRAPH:
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.is_stacked else 10,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if panel.is_stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    return defaults


def _build_overrides(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byName", "options": column},
            "properties": [{"id": "unit", "value": unit}],
        }
        for column, unit in panel.column_units.items()
    ]


def _build_options(panel: Panel) -> dict[str, Any]:
    match panel.type:
        case PanelType.GRAPH:
            return {
                "legend": {
                    "calcs": ["lastNotNull", "max"],
                    "displayMode": "table",
                    "placement": "bottom",
                    "showLegend": True,
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case PanelType.STAT:
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "background",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "auto",
            }
        case PanelType.TABLE:
            return {"cellHeight": "sm", "showHeader": True}
        case PanelType.BARS:
            return {
                "orientation": "auto",
                "stacking": "normal",
                "showValue": "auto",
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
