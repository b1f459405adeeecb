"""The files of deploy/grafana."""

import json

from tools.grafana import postgres, workers
from tools.grafana.dashboard import Dashboard
from tools.pages import ROOT

FOLDER = ROOT / "deploy" / "grafana"

DASHBOARDS = {"workers.json": workers.DASHBOARD, "postgres.json": postgres.DASHBOARD}


def render_dashboard(dashboard: Dashboard) -> str:
    """Return the content of a file."""
    return json.dumps(dashboard.build(), indent=2, ensure_ascii=False) + "\n"
