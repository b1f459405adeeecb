/** Tasks: their jobs by state, who serves them, their pauses and their durations. */
import { html } from "../lib.js";
import { age, count } from "../format.js";
import { useLive } from "../live.js";
import { jobsPath, link, quote } from "../router.js";
import { texts, whyNot } from "../state.js";
import { Button, Empty, JobLink, List, Loaded, Notice, Page, Panel, PauseButton, Stat, State, TaskLink, column, stateWord } from "../ui/index.js";
import { Signature } from "./enqueue.js";
import { Latency } from "./history.js";
import { Paused } from "./queues.js";

export const title = "Tasks";

const STATES = texts.value.states.map(({ name }) => name);
const jobsOf = ({ identifier }, state) => link(jobsPath(`task:${quote(identifier)}${state ? ` state:${state}` : ""}`));
const enqueuing = ({ identifier }) =>
  ({ icon: "enqueue", disabledReason: whyNot("enqueue"), href: link(`enqueue?task=${encodeURIComponent(identifier)}`) });

function served({ paused, is_served: isServed, nearest }) {
  if (paused) return html`<${State} state="paused" />`;
  if (isServed) return html`<${State} state="ok" word="Served" />`;
  // Some workers do not report their tasks.
  return html`<span>${isServed == null ? html`<${State} state="unknown" />` : html`<${State} state="failed" word="Not served" />`}
    ${nearest && html`<div class="muted small">Did you mean <${TaskLink} id=${nearest} />?</div>`}</span>`;
}

const number = (state) => (task) => task.counts[state] > 0
  && html`<a href=${jobsOf(task, state)} class=${["failed", "stale"].includes(state) ? "bad" : ""}>${count(task.counts[state])}</a>`;

const COLUMNS = [
  column.task("identifier", "Task", { card: "lead" }),
  column.text("is_served", "Workers", { card: "end", render: served }),
  column.duration("oldest_ready_seconds", "Oldest ready"),
  ...STATES.map((state) => column.number(state, stateWord(state), { sort: (task) => task.counts[state], render: number(state) })),
  column.line("error", "Newest error"),
  column.actions((task) => html`<${Button} kind="quiet" label=${`Enqueue ${task.identifier}`} ...${enqueuing(task)} />
    <${PauseButton} isQuiet kind="task" name=${task.identifier} paused=${task.paused} />`),
];

export default function Tasks({ params: { name } }) {
  const result = useLive("/tasks");
  const find = ({ tasks }) => html`<${Task} key=${name} name=${name} task=${tasks.find((task) => task.identifier === name)} />`;
  if (name) return html`<${Loaded} result=${result}>${find}<//>`;
  const columns = column.withoutRare(COLUMNS, (state) => result.data?.tasks.some((task) => task.counts[state]));
  return html`<${Page} title="Tasks" hint="Only Python workers obey the pause of a task. Pause a queue to hold all runtimes.">
    <${List} result=${result} rows="tasks" label="Tasks" columns=${columns} keyOf=${(task) => task.identifier} icon="tasks"
      empty=${["No tasks", "A task appears here with its first job, or when a worker that serves it starts."]} /><//>`;
}

function Task({ name, task }) {
  const series = useLive("/history/series", { range: "24h", task: name });
  const hint = html`<a href=${link("tasks")}>All tasks</a>`;
  if (!task) return html`<${Page} title=${name} hint=${hint}><${Empty} icon="tasks" title="No such task">No job and no worker has this task.<//><//>`;
  const { paused, first_ready_id: ready, newest_failing_id: failing } = task;
  return html`<${Page} title=${name} hint=${hint} actions=${html`<${Button} icon="jobs" href=${jobsOf(task)}>Jobs<//>
      <${Button} ...${enqueuing(task)}>Enqueue<//><${PauseButton} kind="task" name=${name} paused=${paused} />`}>
    ${paused && html`<${Notice} kind="warn">Paused <${Paused} pause=${paused} />. Python workers only.<//>`}
    ${task.is_served === false && html`<${Notice} kind="error">No running worker serves this task. ${served(task)}<//>`}
    <div class="stats">
      <${Stat} label="Oldest ready" value=${age(task.oldest_ready_seconds)} note=${ready && html`job <${JobLink} id=${ready} />`} />
      ${STATES.map((state) => html`<${Stat} label=${html`<${State} state=${state} />`}
        value=${count(task.counts[state])} href=${jobsOf(task, state)} />`)}</div>
    <div class="split" data-wide="left">
      <${Loaded} result=${series}>${(data) => html`<${Latency} data=${data} />`}<//>
      <${Panel} title="Parameters"><${Signature} signature=${task.signature} /><//></div>
    ${task.error && html`<${Panel} title="Newest error" hint=${failing && html`of job <${JobLink} id=${failing} />`}>
      <p class="mono wrap">${task.error}</p><//>`}
  <//>`;
}
