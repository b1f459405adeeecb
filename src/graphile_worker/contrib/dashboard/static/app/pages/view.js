/** Any page that the server defines: its table, its changes, and what its answer shows around them. */
import { Alerts, Button, Changes, Loaded, Missing, Notice, Page, Pager, Part, Rich, Search, Stats, Table, html, navigate, putPath, useLive } from "../kit.js";

function Durations({ task }) {
  return html`<${Loaded} result=${useLive("/history/series", { range: "24h", task })}>${(data) => html`<${Part} data=${data} ...${data.view.latency} />`}<//>`;
}

export default function View({ page, id, query }) {
  const { source, rows, search, cursor, columns, item, open, unmatched, empty } = page;
  // A page shows one of its rows by a parameter, or reads it from a route of its own.
  const isPart = id && item === "path";
  const asked = { ...(id && !isPart && { [item]: id }), ...query };
  const result = useLive(isPart ? `${source}/${encodeURIComponent(id)}` : source, asked, { isFrozen: page.is_frozen });
  const view = { title: id && !search ? id : page.title, hint: page.hint, actions: [], notices: [], alerts: [], panels: [], ...result.data?.view };
  const isFound = Object.keys(search ?? { [item]: 1 }).some((name) => asked[name]);
  const panels = view.panels.map((panel) => html`<${Part} key=${panel.title} ...${panel} />`);
  const table = (data) => html`<${Table} key=${source} rows=${data[rows]} rowKey=${page.row_key} label=${page.table ?? page.title} columns=${columns}
      actions=${(row) => html`<${Changes} changes=${row.actions} row=${row} />`} onOpen=${open && ((row) => navigate(putPath(open, row)))}
      empty=${html`<${Missing} icon=${page.icon} empty=${isFound ? unmatched : view.empty ?? empty} />`} />
    ${cursor && html`<${Pager} next=${data.next} cursor=${cursor} query=${query} />`}`;
  return html`<${Page} title=${view.title} hint=${view.hint && html`<${Rich} text=${view.hint} />`} actions=${page.is_frozen
      ? html`<${Button} icon="retrying" onClick=${result.reload}>Check again<//>` : html`<${Changes} isTitle changes=${view.actions} row=${result.data ?? {}} />`}>
    ${search && html`<${Search} fields=${search} query=${asked} cursor=${cursor} />`}
    <${Loaded} result=${result}>${(data) => html`
      ${view.notices.map(({ kind, text }) => html`<${Notice} kind=${kind}><${Rich} text=${text} /><//>`)}
      <${Alerts} alerts=${view.alerts} isFull />
      ${view.stats && html`<${Stats} stats=${view.stats} />`}
      ${rows && !isPart && table(data)}
      ${view.latency_of ? html`<div class="split" data-wide="left"><${Durations} task=${view.latency_of} /><div class="stack">${panels}</div></div>` : panels}`}<//>
  <//>`;
}
