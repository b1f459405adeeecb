/** Scheduled tasks: when each runs next, and whether it runs on time. */
import { html } from "../lib.js";
import { age } from "../format.js";
import { useLive } from "../live.js";
import { whyNot } from "../state.js";
import { Button, List, Page, Time, act, column } from "../ui/index.js";

export const title = "Cron";

const SOURCES = { app: "this dashboard’s app", worker: "a running worker", database: "the database" };
const run = ({ identifier }) => () => act(`/cron/${encodeURIComponent(identifier)}/run`);

const schedule = ({ schedule: pattern, words, source }) => (pattern
  ? html`<code>${pattern}</code><div class="muted small">${words}, from ${SOURCES[source]}</div>`
  : html`<span class="muted">Unknown here: another runtime defines it</span>`);
const next = ({ next: [first, ...later] }) => first && html`<${Time} at=${first} kind="both" />
  <div class="muted small">then ${later.map((at, index) => html`${index > 0 && ", "}<${Time} at=${at} kind="at" />`)}</div>`;

const COLUMNS = [
  column.text("identifier", "Item", { card: "lead" }),
  column.state("health", "Status"),
  column.text("schedule", "Schedule", { card: "line", render: schedule }),
  column.task("task", "Task"),
  column.text("next", "Next", { sort: (item) => item.next[0], render: next }),
  column.when("last_at", "Last"),
  column.duration("backfill_seconds", "Backfill", { render: ({ backfill_seconds: seconds }) => seconds > 0 && age(seconds) }),
  column.actions((item) => html`<${Button} icon="running" onClick=${run(item)}
    disabledReason=${whyNot("enqueue") ?? (item.source === "app" ? null : "Start the dashboard with the app that defines this item.")}>Run now<//>`),
];

export default function Cron() {
  const empty = ["No scheduled tasks", html`<p>Declare one with <code>@app.cron("0 9 * * *")</code> or in a crontab file, and start a worker.</p>`];
  return html`<${Page} title="Cron" hint="Scheduled tasks"><${List} result=${useLive("/cron")} rows="items" label="Scheduled tasks"
    columns=${COLUMNS} keyOf=${({ identifier }) => identifier} icon="cron" empty=${empty} /><//>`;
}
