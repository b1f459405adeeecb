/** What happened: throughput and latency over time, and jobs that ended. */
import {
  Chips, FilterBox, Loaded, Missing, Page, Pager, Panel, Part, Rich, Table, html, navigate, setQuery, useLive,
} from "../kit.js";

const RANGES = ["1h", "6h", "24h", "7d"].map((value) => ({ value, label: value.replace(/(\d+)(.)/, "$1 $2") }));

export default function History({ page, query: { range = "1h", task, q, after } }) {
  const series = useLive("/history/series", { range, task });
  const isKept = series.data?.coverage?.kept > 0;
  const outcomes = useLive(isKept ? "/history/outcomes" : null, { q, after, limit: 50 });
  return html`<${Page} title="History" hint=${task && `of task ${task}`} actions=${html`
      <${Chips} label="Range" items=${RANGES} value=${range} onChange=${(value) => setQuery({ range: value })} />`}>
    <${Loaded} result=${series}>${(data) => {
      const { coverage, throughput, latency } = data.view;
      return html`${coverage.title ? html`<${Part} ...${coverage} />` : html`<p><${Rich} text=${coverage.text} /></p>`}
        ${throughput ? html`<div class="split"><${Part} data=${data} ...${throughput} /><${Part} data=${data} ...${latency} /></div>`
          : isKept && html`<${Missing} icon="history" empty=${page.empty} />`}`;
    }}<//>
    ${isKept && html`<${Panel} title="Jobs that ended"><div class="stack">
      <${FilterBox} value=${q ?? ""} error=${outcomes.error?.code === "bad_filter" ? outcomes.error : null}
        onApply=${(text) => setQuery({ q: text, after: null })} />
      <${Loaded} result=${outcomes}>${(data) => html`<${Table} label="Jobs that ended" columns=${page.columns} rows=${data.outcomes}
          onOpen=${(job) => navigate(`jobs/${job.id}`)} empty=${html`<${Missing} icon="history" empty=${page.unmatched} />`} />
        <${Pager} next=${data.next} cursor="after" query=${{ after }} />`}<//></div><//>`}
  <//>`;
}
