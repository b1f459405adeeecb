/** Overview: is work flowing, and if not, why? */
import {
  Alerts, Chart, Icon, Loading, Missing, Page, Panel, Problem, Stats, Table, age, count, dataAge, html, link, overview, plural,
  problem, texts, time,
} from "../kit.js";
import { HEALTH_ICONS } from "../shell.js";

const FIRST_JOB = `select graphile_worker.add_job('send_email', '{"to": "ana@example.com"}');`;
const MAX_NOTES = 3;
const HISTORY = html`<a href=${link("history")}>History</a>`;

function Findings({ alerts }) {
  const urgent = alerts.filter((alert) => alert.severity !== "note");
  const notes = alerts.filter((alert) => alert.severity === "note");
  const isShort = !urgent.length && notes.length <= MAX_NOTES;
  return html`<section class="stack" aria-label="Alerts"><${Alerts} alerts=${urgent} />
    ${isShort ? html`<${Alerts} alerts=${notes} />`
      : notes.length > 0 && html`<details><summary>${plural(notes.length, "note")}</summary><${Alerts} alerts=${notes} /></details>`}</section>`;
}

function Throughput({ series }) {
  const isMeasured = series.filter(({ completed }) => completed != null).length > 1;
  return html`<${Panel} title="Throughput" actions=${HISTORY}>${isMeasured
    ? html`<${Chart} chart=${texts.value.overview_chart} points=${series} />`
    : html`<p class="muted">The chart starts after two samples, within a few seconds.</p>`}<//>`;
}

function Tasks({ columns, tasks, task_count: total }) {
  const hint = total > tasks.length && `The ${count(tasks.length)} most urgent of ${count(total)}`;
  return tasks.length > 0 && html`<${Panel} title="By task" hint=${hint} actions=${html`<a href=${link("tasks")}>All tasks</a>`}>
    <${Table} columns=${columns} rows=${tasks} rowKey="identifier" label="Jobs by task" /><//>`;
}

const Ended = ({ ended }) => ended?.length > 0 && html`<${Panel} title="What ended last" actions=${HISTORY}>
  <${Table} columns=${texts.value.brief_columns} rows=${ended} label="Jobs that ended last" /><//>`;

export default function Overview({ page }) {
  const data = overview.value;
  if (!data) return problem.value ? html`<${Problem} error=${problem.value} />` : html`<${Loading} />`;
  if (!data.taken_at) {
    return data.outage ? html`<${Problem} error=${{ ...data.outage, detail: data.outage.message }} />` : html`<${Loading} />`;
  }
  const isEmpty = !data.is_partial && !Object.values(data.totals).some(Boolean) && !data.tasks.length && !data.ended?.length;
  const [title, text] = page.empty;
  const { health, sentence: words } = data.verdict;
  const updated = dataAge.value < 3 ? "just now" : `${age(Math.round(dataAge.value))} ago`;
  const hint = data.is_partial ? "Counting the jobs. Ages, rates and workers are current." : `updated ${updated}`;
  return html`<${Page}
    title=${html`<span class="headline" data-health=${health}>
      <${Icon} name=${HEALTH_ICONS[health] ?? "unknown"} /><span>${words}</span></span>`}
    hint=${html`<span title=${time(data.taken_at)}>${hint}</span>`}
  >
    ${data.alerts.length > 0 && html`<${Findings} alerts=${data.alerts} />`}
    <div class=${`stack ${data.outage ? "stale-data" : ""}`}>
      <${Stats} stats=${data.stats} values=${(name) => data.series.map((point) => point[name])} />
      ${isEmpty ? html`<${Missing} icon=${page.icon} empty=${[title, [...text, { sql: FIRST_JOB }]]} />` : html`<${Throughput} ...${data} />`}
      <${Tasks} ...${data} columns=${page.columns} />
      <${Ended} ended=${data.ended} />
    </div>
  <//>`;
}
