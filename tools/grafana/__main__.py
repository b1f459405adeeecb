"""Write the dashboards of deploy/grafana."""

from tools.grafana.files import DASHBOARDS, FOLDER, render_dashboard


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(render_dashboard(dashboard), encoding="utf-8")


main()
