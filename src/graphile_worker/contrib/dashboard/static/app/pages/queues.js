/** Named queues: what holds each, what waits, and pauses. */
import { html } from "../lib.js";
import { count, plural } from "../format.js";
import { useLive } from "../live.js";
import { jobsPath, link, quote } from "../router.js";
import { JobLink, List, Notice, Page, PauseButton, Search, Time, WorkerLink, column } from "../ui/index.js";
import { RecoverButton } from "./workers.js";

export const title = "Queues";

/** A pause in words. */
export const Paused = ({ pause: { by, until, reason } }) => html`<span class="wrap">by ${by ?? "an unknown user"} until
  ${" "}${until ? html`<${Time} at=${until} kind="at" />` : "resumed"}${reason && `: ${reason}`}</span>`;

const holder = ({ paused, job_id: id, task, locked_by: worker, worker_health: health }) => (paused
  ? html`<${Paused} pause=${paused} />`
  : worker && html`<span>${id && html`job <${JobLink} id=${id} /> ${task} on `}<${WorkerLink} id=${worker} />
    ${health === "dead" && html` <span class="badge" data-kind="bad">dead</span>`}</span>`);

const COLUMNS = [
  column.text("name", "Queue", { card: "lead",
    render: ({ name }) => html`<a class="mono" href=${link(jobsPath(`queue:${quote(name)}`))}>${name}</a>` }),
  column.state("state", "State"),
  { key: "holder", label: "Held by", card: "line", render: holder },
  column.when("since", "Since"),
  column.number("ready", "Ready"),
  column.number("waiting", "Waiting", { render: ({ waiting, is_capped: isCapped }) => count(waiting) + (isCapped ? "+" : "") }),
  column.duration("oldest_waiting_seconds", "Oldest"),
  column.actions(({ name, state, paused, locked_by: worker, worker_health: health }) => html`
    ${state === "blocked" && html`<${RecoverButton} ids=${[worker]} health=${health ?? "unknown"} />`}
    <${PauseButton} isQuiet kind="queue" name=${name} paused=${paused} />`),
];

export default function Queues({ params, query }) {
  const q = query.q ?? params.name;
  const result = useLive("/queues", { q, after: query.after, limit: 100 });
  const blocked = result.data?.queues.filter(({ state }) => state === "blocked").length;
  return html`<${Page} title="Queues" hint="A named queue runs one job at a time. All runtimes obey its pause.">
    <${Search} fields=${{ q: "Find queues by name" }} query=${{ q }} cursor="after" />
    ${blocked > 0 && html`<${Notice} kind="error">Stale locks block ${plural(blocked, "queue")}. Recover the worker to release its locks now.<//>`}
    <${List} result=${result} rows="queues" label="Queues" columns=${COLUMNS} keyOf=${({ name }) => name} cursor="after" query=${query} icon="queues"
      empty=${q ? ["No queue has this name", "Search for a part of the name."]
        : ["No named queues", "Jobs with a queue name run one after another."]} />
  <//>`;
}
