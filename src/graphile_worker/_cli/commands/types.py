"""`graphile-worker types`: payloads of tasks as JSON Schema or TypeScript, and their changes."""

import json
from pathlib import Path
from typing import Any

import click

from graphile_worker._cli.arguments import json_option
from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._cli.settings.resolve import resolve_app
from graphile_worker._contracts.comparison import Change, compare_documents
from graphile_worker._contracts.document import build_document, check_document
from graphile_worker._contracts.typescript import write_typescript
from graphile_worker._support.error_format import make_printable
from graphile_worker._support.text import pluralize
from graphile_worker.errors import ConfigurationError
from graphile_worker.tasks import Task, TaskRouter


@click.command()
@click.option("--json-schema", is_flag=True, help="Print a JSON Schema of all payloads.")
@click.option("--typescript", is_flag=True, help="Print TypeScript declarations.")
@click.option(
    "--check",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of --json-schema to compare with (default: none).",
)
@click.option("--external", is_flag=True, help="Include external tasks.")
@json_option
@setting_flags("app")
def types(
    json_schema: bool, typescript: bool, check: Path | None, external: bool, as_json: bool
) -> None:
    """Describe the payloads of tasks for other languages.

    Exit codes: 0 no breaking change, 1 a breaking change or an error, 2 usage error.
    """
    if typescript == (json_schema or check is not None):
        raise click.UsageError("pass --json-schema, --typescript or --check FILE.")
    if as_json and check is None:
        raise click.UsageError("--json needs --check.")
    if external and check is not None:
        raise click.UsageError(
            "--check compares the tasks that your workers run. Remove --external, and write "
            f"{check} without it, too."
        )
    document = build_document(_list_tasks(external=external))
    if check is not None:
        changes = compare_documents(_read_document(check), document)
        click.echo(_format_json(changes) if as_json else _format_changes(changes))
        click.get_current_context().exit(any(change.is_breaking for change in changes))
    if typescript:
        click.echo(write_typescript(document), nl=False)
    else:
        click.echo(json.dumps(document, indent=2))


def _list_tasks(*, external: bool) -> dict[str, Task[..., Any]]:
    app: TaskRouter[Any] | None = resolve_app(current_settings())
    if app is None:
        raise ConfigurationError("no app. Pass one with --app package.module:app.")
    return {**app.tasks(), **(app.external_tasks() if external else {})}


def _read_document(path: Path) -> dict[str, Any]:
    try:
        return check_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ConfigurationError) as error:
        raise ConfigurationError(f"cannot compare with {path}: {error}") from None


def _format_changes(changes: list[Change]) -> str:
    lines = [
        _format_change(each) for each in sorted(changes, key=lambda each: not each.is_breaking)
    ]
    count = sum(each.is_breaking for each in changes)
    lines.append(f"{pluralize(len(changes), 'change')}, {count} breaking")
    return "\n".join(map(make_printable, lines))


def _format_change(change: Change) -> str:
    kind = "breaking" if change.is_breaking else "compatible"
    subject = f'{change.task}, "{change.path}"' if change.path else change.task
    return f"{kind}: {subject}: {change.reason}"


def _format_json(changes: list[Change]) -> str:
    return json.dumps([change._asdict() for change in changes], indent=2)
