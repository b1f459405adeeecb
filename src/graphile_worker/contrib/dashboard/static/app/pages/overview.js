/** Overview: is work flowing, and if not, why? */
import { html } from "../lib.js";
import { age, count, plural, rate, time } from "../format.js";
import { jobsPath, link, quote } from "../router.js";
import { HEALTH_ICONS } from "../shell.js";
import { dataAge, overview, problem, texts, whyNot } from "../state.js";
import {
  Button, Chart, Code, Empty, Icon, Loading, Page, Panel, Problem, Stat, Table, act, column,
} from "../ui/index.js";
import { ENDED_COLUMNS } from "./history.js";

export const title = "Overview";

const MAX_NOTES = 3;

const jobsLink = (filter) => link(jobsPath(filter));
const taskLink = (task, state) => jobsLink(`task:${quote(task)}${state ? ` state:${state}` : ""}`);
const HISTORY = html`<a href=${link("history")}>History</a>`;

function Alert({ alert: { action, severity, title: what, evidence, advice, shell, sql, link: path } }) {
  return html`<li class="alert" data-severity=${severity}>
    <${Icon} name=${severity} label=${severity} />
    <p class="alert-title">${what}</p>
    <div class="alert-text">
      ${[...evidence, advice].map((line) => html`<div>${line}</div>`)}
      ${(shell || sql) && html`<details><summary>${shell ? "Command" : "SQL"}</summary>
        <${Code} text=${shell ?? sql} language=${shell ? "shell" : "sql"} copy /></details>`}
    </div>
    <div class="actions">
      ${path && html`<${Button} href=${link(path)}>Show<//>`}
      ${action && html`<${Button} kind="primary" disabledReason=${whyNot(action.permission)} onClick=${() => act(action.path, action.body, action.question)}>${action.label}<//>`}
    </div>
  </li>`;
}

function Alerts({ alerts }) {
  const urgent = alerts.filter((alert) => alert.severity !== "note");
  const notes = alerts.filter((alert) => alert.severity === "note");
  const show = (list) => list.length > 0 && html`<ul class="alerts">
    ${list.map((alert) => html`<${Alert} key=${alert.id + alert.title} alert=${alert} />`)}</ul>`;
  const isShort = !urgent.length && notes.length <= MAX_NOTES;
  return html`<section class="stack" aria-label="Alerts">${show(urgent)}
    ${isShort ? show(notes) : notes.length > 0 && html`<details><summary>${plural(notes.length, "note")}</summary>${show(notes)}</details>`}</section>`;
}

const getValues = (series, name) => series.map((point) => point[name]);

function Stats({ stats, series }) {
  return html`<div class="stats">${stats.map(({ label, value, of, note, tone, link: path, series: name, about }) => html`<${Stat} key=${label}
    label=${label} note=${note} tone=${tone} href=${path && link(path)} values=${getValues(series, name)} spark=${about}
    value=${html`${value}${of && html` <span class="muted small">${of}</span>`}`} />`)}</div>`;
}

function Throughput({ series }) {
  const of = (name) => getValues(series, name);
  const isMeasured = of("completed").filter((value) => value != null).length > 1;
  return html`<${Panel} title="Throughput" actions=${HISTORY}>${isMeasured
    ? html`<${Chart} label="Jobs added and completed per second" at=${of("at")} format=${rate} series=${[
        { label: "Completed", values: of("completed"), color: "accent", isFilled: true },
        { label: "Added", values: of("added"), color: "retrying", isDashed: true },
      ]} />`
    : html`<p class="muted">The chart starts after two samples, within a few seconds.</p>`}<//>`;
}

const TASK_COLUMNS = [
  {
    key: "identifier", label: "Task", sort: true, card: "lead",
    render: (task) => html`<a class="mono" href=${taskLink(task.identifier)}>${task.identifier}</a>
      ${task.is_paused && html` <span class="badge" data-kind="warn">paused</span>`}
      ${task.is_served === false && html` <span class="badge" data-kind="bad">no worker</span>`}`,
  },
  column.duration("oldest_ready_seconds", "Oldest ready", {
    card: "end", render: ({ oldest_ready_seconds: seconds, tone }) => seconds != null && html`<span class=${tone}>${age(seconds)}</span>`,
  }),
  ...texts.value.states.map(({ name: state, label }) => column.number(state, label, {
    render: (task) => task[state] > 0 && html`<a href=${taskLink(task.identifier, state)}>${count(task[state])}</a>`,
  })),
  column.line("error", "Newest error", { sort: false }),
];

function Tasks({ tasks, task_count: total }) {
  const columns = column.withoutRare(TASK_COLUMNS, (state) => tasks.some((task) => task[state]));
  const hint = total > tasks.length && `The ${count(tasks.length)} most urgent of ${count(total)}`;
  return tasks.length > 0 && html`<${Panel} title="By task" hint=${hint} actions=${html`<a href=${link("tasks")}>All tasks</a>`}>
    <${Table} columns=${columns} rows=${tasks} keyOf=${(task) => task.identifier} label="Jobs by task" /><//>`;
}

const isBrief = ({ key }) => !["wait", "attempt", "worker"].includes(key);

function Ended({ ended }) {
  return ended?.length > 0 && html`<${Panel} title="What ended last" actions=${HISTORY}>
    <${Table} columns=${ENDED_COLUMNS.filter(isBrief)} rows=${ended} keyOf=${(job) => `${job.id} ${job.finished_at}`} label="Jobs that ended last" /><//>`;
}

/** A queue without any job: how to add the first. */
function FirstSteps() {
  return html`<${Empty} icon="jobs" title="No jobs yet"><div class="stack">
    <p>The queue is empty. Jobs that you add appear here within two seconds.</p>
    <${Code} text=${`select graphile_worker.add_job('send_email', '{"to": "ana@example.com"}');`} language="sql" copy />
    <p><${Button} kind="primary" disabledReason=${whyNot("enqueue")} href=${link("enqueue")}>Enqueue a job<//></p></div><//>`;
}

export default function Overview() {
  const data = overview.value;
  if (!data) return problem.value ? html`<${Problem} error=${problem.value} />` : html`<${Loading} />`;
  if (!data.taken_at) {
    return data.outage ? html`<${Problem} error=${{ ...data.outage, detail: data.outage.message }} />` : html`<${Loading} />`;
  }
  const isEmpty = !data.is_partial && !Object.values(data.totals).some(Boolean) && !data.tasks.length && !data.ended?.length;
  const { health, sentence: words } = data.verdict;
  const updated = dataAge.value < 3 ? "just now" : `${age(Math.round(dataAge.value))} ago`;
  const hint = data.is_partial ? "Counting the jobs. Ages, rates and workers are current." : `updated ${updated}`;
  return html`<${Page}
    title=${html`<span class="headline" data-health=${health}>
      <${Icon} name=${HEALTH_ICONS[health] ?? "unknown"} /><span>${words}</span></span>`}
    hint=${html`<span title=${time(data.taken_at)}>${hint}</span>`}
  >
    ${data.alerts.length > 0 && html`<${Alerts} alerts=${data.alerts} />`}
    <div class=${`stack ${data.outage ? "stale-data" : ""}`}>
      <${Stats} ...${data} />
      ${isEmpty ? html`<${FirstSteps} />` : html`<${Throughput} ...${data} />`}
      <${Tasks} ...${data} />
      <${Ended} ended=${data.ended} />
    </div>
  <//>`;
}
