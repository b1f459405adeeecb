/** Workers: which are alive, which are dead, and what they hold. */
import { html } from "../lib.js";
import { count, plural } from "../format.js";
import { useLive } from "../live.js";
import { link } from "../router.js";
import { texts, whyNot } from "../state.js";
import { Button, List, Notice, Page, Panel, TaskLink, WorkerLink, act, column } from "../ui/index.js";

export const title = "Workers";

const ORDER = ["dead", "unknown", "alive"];

/** Releases what dead workers hold. For a worker that may be alive, the user types its id. */
export function RecoverButton({ ids, health = "dead", children = "Recover…" }) {
  const isDead = health === "dead";
  const name = ids.length === 1 ? ids[0] : plural(ids.length, "dead worker");
  const typed = isDead ? null : ids[0];
  const question = { title: `Recover the jobs of ${name}?`, text: texts.value.recover[health], danger: true, action: "Recover", typed };
  return html`<${Button} kind=${isDead ? "danger" : "quiet"} disabledReason=${whyNot("recover")}
    onClick=${() => act("/workers/recover", { ids, force: !isDead, confirm: typed }, question)}>${children}<//>`;
}

const join = (parts, separator = " / ") => parts.filter(Boolean).join(separator);
const describe = ({ runtime, version, host, pid }) => join([join([runtime, version], " "), host && `on ${host}`, pid && `process ${pid}`], ", ");
const holds = ({ jobs, queues }) => join([jobs && plural(jobs, "job"), queues && plural(queues, "queue")], ", ");

const COLUMNS = [
  column.worker("id", "Worker", { card: "lead", render: ({ id, ...worker }) => html`<${WorkerLink} id=${id} />
    <div class="muted small">${describe(worker)}</div>` }),
  column.state("health", "Health", { sort: ({ health }) => ORDER.indexOf(health) }),
  column.number("jobs", "Slots", { render: ({ jobs, concurrency }) => join([count(jobs), concurrency]) }),
  column.duration("seconds_since_heartbeat", "Last heartbeat"),
  { key: "holds", label: "Holds", render: holds },
  column.when("oldest_lock_at", "Oldest lock"),
  column.number("tasks", "Tasks", { sort: ({ tasks }) => tasks?.length, render: ({ tasks }) => tasks && count(tasks.length) }),
  column.when("started_at", "Started"),
  column.actions((worker) => holds(worker) && html`<${RecoverButton} ids=${[worker.id]} health=${worker.health} />`),
];

export default function Workers({ params: { id } }) {
  const result = useLive("/workers");
  const workers = result.data?.workers.filter((worker) => !id || worker.id === id) ?? [];
  const of = (health) => workers.filter((worker) => worker.health === health);
  const dead = of("dead").filter(holds).map((worker) => worker.id);
  const versions = [...new Set(of("alive").map(({ runtime, version }) => join([runtime, version], " ")))].sort();
  const counts = workers.length > 0 && ORDER.toReversed().map((health) => `${of(health).length} ${health}`).join(", ");
  return html`<${Page} title="Workers" hint=${id ? html`<a href=${link("workers")}>All workers</a>` : counts}
    actions=${dead.length > 1 && html`<${RecoverButton} ids=${dead}>Recover all ${dead.length} dead…<//>`}>
    ${of("unknown").length > 0 && html`<${Notice}>Workers of Node send no heartbeats.
      They appear here while they hold locks.<//>`}
    ${versions.length > 1 && html`<${Notice}>Workers of ${versions.length} versions are running: ${versions.join(", ")}.<//>`}
    <${List} result=${{ ...result, data: result.data && { workers } }} rows="workers" label="Workers" columns=${COLUMNS} order=${{ key: "health" }}
      icon="workers" empty=${id ? ["This worker is gone", "It ended, and holds no locks."] : ["No workers",
        html`<p>No worker sends heartbeats, and none holds a lock. Start one with <code>graphile-worker run</code>.</p>`]} />
    ${id && workers[0]?.tasks && html`<${Panel} title="Tasks"><div class="row">
      ${workers[0].tasks.map((task) => html`<${TaskLink} key=${task} id=${task} />`)}</div><//>`}
  <//>`;
}
