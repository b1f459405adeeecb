/** What happened: throughput and latency over time, and jobs that ended. */
import { html } from "../lib.js";
import { FilterBox } from "../filterbox.js";
import { age, count, rate } from "../format.js";
import { useLive } from "../live.js";
import { navigate, setQuery } from "../router.js";
import { Chart, Code, Empty, List, Loaded, Page, Panel, Tabs, column } from "../ui/index.js";

export const title = "History";

const RANGES = ["1h", "6h", "24h", "7d"].map((value) => ({ value, label: value.replace(/(\d+)(.)/, "$1 $2") }));
const EXAMPLE = "app = App(retention=Retention(results=True, attempts=True))";
const between = (from, to) => (job) => job[from] && age((Date.parse(job[to]) - Date.parse(job[from])) / 1000);

/** Columns of jobs that ended. */
export const ENDED_COLUMNS = [
  column.job("id", "Job", { card: "lead" }),
  column.state("state", "Outcome"),
  column.task("task", "Task"),
  column.when("finished_at", "Ended"),
  column.duration("run", "Duration", { render: between("started_at", "finished_at") }),
  column.duration("wait", "Waited", { render: between("run_at", "started_at") }),
  column.number("attempt", "Attempt", { render: (job) => [job.attempt, job.max_attempts].filter(Boolean).join("/") }),
  column.worker("worker", "Worker"),
  column.line("error", "Error"),
].map((each) => ({ ...each, sort: false }));

/** How many outcomes the figures come from, or how to keep outcomes. */
function Coverage({ data: { source, coverage, sampled_percent: sample } }) {
  const { kept, seen } = coverage ?? {};
  if (!kept) {
    return html`<${Panel} title="Turn on history"><div class="stack">
      <p>Workers delete a job when it completes. A <code>Retention</code>, of the app or of a task, keeps its outcome:</p>
      <${Code} text=${EXAMPLE} label="Python" copy />
      ${source === "memory" && html`<p class="muted">Until then, the chart shows what this dashboard has seen since it started.</p>`}</div><//>`;
  }
  return html`<p class="muted">${count(kept)} of ${count(seen)} known tasks keep outcomes.
    ${sample != null && ` The figures are estimates from ${sample < 1 ? "less than 1" : Math.round(sample)} % of the outcomes.`}</p>`;
}

/** A chart of points of history. Lines are `[key, label, color, more]`. */
function Lines({ data, lines, convert = (value) => value, ...rest }) {
  const values = (key) => data.points.map((point) => (point[key] == null ? null : convert(point[key])));
  return html`<${Chart} at=${data.points.map((point) => point.at)} isPartialLast=${data.is_partial_last} ...${rest}
    series=${lines.map(([key, label, color, more]) => ({ label, color, values: values(key), ...more }))} />`;
}

/** How long jobs ran, and how long they waited from due to started. */
export const Latency = ({ data }) => html`<${Panel} title="Latency" hint="run time, and time from due to started">
  ${data.points.some((point) => point.run_p50 != null)
    ? html`<${Lines} data=${data} label="Run time and waiting time" format=${age} lines=${[
        ["run_p50", "Run, median", "running"], ["run_p95", "Run, 95 %", "running", { isDashed: true }],
        ["wait_p50", "Wait, median", "waiting"], ["wait_p95", "Wait, 95 %", "waiting", { isDashed: true }]]} />`
    : html`<p class="muted">Durations come from kept outcomes.</p>`}<//>`;

function Throughput({ data }) {
  const isMemory = data.source === "memory";
  const total = (key) => count(data.points.reduce((sum, point) => sum + (point[key] ?? 0), 0));
  const lines = isMemory
    ? [["completed", "Ended", "running", { isFilled: true }]]
    : [["succeeded", "Succeeded", "ready", { isFilled: true }], ["failed", "Failed", "failed"]];
  const hint = isMemory ? "as this dashboard has seen it" : `${total("succeeded")} succeeded, ${total("failed")} failed permanently`;
  return html`<${Panel} title="Throughput" hint=${hint}>
    <${Lines} data=${data} label="Jobs that ended, per second" format=${rate} convert=${(value) => value / data.step_seconds}
      lines=${isMemory ? lines.slice(0, 1) : lines} /><//>`;
}

export default function History({ query: { range = "1h", task, q, after } }) {
  const series = useLive("/history/series", { range, task });
  const isKept = series.data?.coverage?.kept > 0;
  const outcomes = useLive(isKept ? "/history/outcomes" : null, { q, after, limit: 50 });
  return html`<${Page} title="History" hint=${task && `of task ${task}`} actions=${html`
      <${Tabs} kind="small" label="Range" items=${RANGES} value=${range} onChange=${(value) => setQuery({ range: value })} />`}>
    <${Loaded} result=${series}>${(data) => html`<${Coverage} data=${data} />
      ${data.points.some((point) => point.succeeded || point.failed || point.completed)
        ? html`<div class="split"><${Throughput} data=${data} /><${Latency} data=${data} /></div>`
        : isKept && html`<${Empty} icon="history" title="Nothing ended in this range">Choose a longer range.<//>`}`}<//>
    ${isKept && html`<${Panel} title="Jobs that ended"><div class="stack">
      <${FilterBox} value=${q ?? ""} error=${outcomes.error?.code === "bad_filter" ? outcomes.error : null}
        onApply=${(text) => setQuery({ q: text, after: null })} />
      <${List} result=${outcomes} rows="outcomes" label="Jobs that ended" columns=${ENDED_COLUMNS} keyOf=${(job) => `${job.id} ${job.finished_at}`}
        onOpen=${(job) => navigate(`jobs/${job.id}`)} cursor="after" query=${{ after }} icon="history"
        empty=${["No outcome matches", "Remove a condition of the filter."]} /></div><//>`}
  <//>`;
}
