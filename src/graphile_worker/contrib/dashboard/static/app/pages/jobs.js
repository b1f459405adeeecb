/** Jobs: find them, follow them live, and change many at once. */
import { html, useEffect, useRef, useState } from "../lib.js";
import { isOutage } from "../api.js";
import { openBulk } from "../bulk.js";
import { FilterBox } from "../filterbox.js";
import { age, count, plural, secondsSince, sum, time } from "../format.js";
import { useShortcuts } from "../keyboard.js";
import { useLive } from "../live.js";
import { link, navigate, setQuery } from "../router.js";
import { overview, stored, texts, whyNot } from "../state.js";
import { Button, Dialog, Empty, JobLink, Loaded, Notice, Page, State, Table, Time, column, stateWord, toast } from "../ui/index.js";

export const title = "Jobs";

const PAGE_SIZE = 50;
const EXTRA_ROWS = 50;
const COUNT_MS = 10000;
const SINCE = { ready: "run_at", waiting: "run_at", running: "locked_at", stale: "locked_at" };

/** How long the job has been in its state, or when it leaves it. */
function When({ job }) {
  const since = job[SINCE[job.state]];
  if (since) return html`<span class="nowrap" title=${time(since)}>for ${age(Math.max(0, Math.round(secondsSince(since))))}</span>`;
  const hasFailed = job.state === "failed";
  return html`<${Time} at=${hasFailed ? job.failed_at : job.run_at} isEstimate=${hasFailed} />`;
}

const showName = (name) => name && html`<span class="mono name" title=${name}>${name}</span>`;
const GONE = html`<span class="muted" title="Completed, removed, or no longer matched by the filter">Left the list</span>`;

/** All columns. Those with a `choice` can be hidden: "on" is shown until the user decides. */
const COLUMNS = [
  { key: "id", label: "ID", render: (job) => html`<${JobLink} id=${job.id} />` },
  { key: "task", label: "Task", card: "lead", render: (job) => showName(job.task) },
  { key: "queue", label: "Queue", choice: "on", render: (job) => showName(job.queue) },
  { key: "state", label: "State", card: "end", render: (job) => (job.isGone ? GONE : html`<${State} state=${job.state} />`) },
  { key: "when", label: "When", choice: "on", render: (job) => !job.isGone && html`<${When} job=${job} />` },
  column.when("run_at", "Run at", { choice: "off" }),
  column.when("created_at", "Created", { choice: "on" }),
  column.number("priority", "Priority", { choice: "off" }),
  { key: "attempts", label: "Attempts", choice: "on", align: "right", render: (job) => `${job.attempts}/${job.max_attempts}` },
  { key: "key", label: "Key", choice: "off", render: (job) => showName(job.key) },
  { key: "flags", label: "Flags", choice: "off", render: (job) => job.flags.join(", ") },
  column.worker("locked_by", "Locked by", { choice: "off" }),
  { key: "error", label: "Error", choice: "on", fill: true, card: "line" },
].map((each) => ({ ...each, sort: false }));

const shownColumns = stored("jobColumns", COLUMNS.filter(({ choice }) => choice === "on").map(({ key }) => key).join());
const isShown = ({ key, choice }) => !choice || shownColumns.value.split(",").includes(key);

/** The choice of columns, which this browser keeps. */
function ColumnChoice({ onClose }) {
  const choose = (chosen) => (event) =>
    (shownColumns.value = COLUMNS.filter((each) => (each === chosen ? event.target.checked : each.choice && isShown(each))).map(({ key }) => key).join());
  return html`<${Dialog} title="Columns" onClose=${onClose} actions=${html`<${Button} kind="primary" onClick=${onClose}>Close<//>`}>
    <div>${COLUMNS.map((each) => each.choice && html`<label class="check" key=${each.key}>
      <input type="checkbox" checked=${isShown(each)} onChange=${choose(each)} />${each.label}</label>`)}</div><//>`;
}

const STATE_TERM = new RegExp(`(?:^|\\s)state:(${texts.value.states.map(({ name }) => name).join("|")})(?=\\s|$)`);

/** Reads the URL: the filter, and the state of the tab, which a link may put in `q`. */
function readQuery({ q = "", state = "" }) {
  const term = state ? null : STATE_TERM.exec(q);
  const others = term ? q.replace(STATE_TERM, "").trim() : q;
  return { text: q, others, state: state || term?.[1] || "", filter: state ? `${q} state:${state}`.trim() : q };
}

/** The last rows, so that Back shows them at once. */
let kept = null;

/** Rows that stay where they are: updated in place, marked when they left the list. New ones are counted. */
function update(before, { jobs, next, ...page }) {
  if (!before) return { ...page, rows: jobs.slice(0, PAGE_SIZE), hasMore: next !== null || jobs.length > PAGE_SIZE, fresh: 0 };
  const current = new Map(jobs.map((job) => [job.id, job]));
  // Below the last job of the answer, nothing is known.
  const end = next === null ? -Infinity : BigInt(next);
  const rows = before.rows.map((job) => current.get(job.id) ?? (BigInt(job.id) < end ? job : { ...job, isGone: true }));
  return { ...before, ...page, rows, fresh: jobs.filter((job) => BigInt(job.id) > BigInt(rows[0].id)).length };
}

function useJobs(params, isInUse) {
  const key = JSON.stringify(params);
  const { data, error, isCurrent, reload } = useLive("/jobs", { ...params, limit: PAGE_SIZE + EXTRA_ROWS });
  const [view, setView] = useState(kept?.key === key ? kept : null);
  const isReplaced = useRef(false);
  useEffect(() => {
    if (!data || !isCurrent) return;
    const isInPlace = view?.key === key && view.rows.length > 0 && !isReplaced.current && (view.hasMore || isInUse());
    isReplaced.current = false;
    kept = { ...update(isInPlace ? view : null, data), key };
    setView(kept);
  }, [data]);
  const show = () => {
    isReplaced.current = true;
    reload();
  };
  return { view, error, isCurrent: view?.key === key, show };
}

/** Counts of the tabs: from the overview without a filter, otherwise counted every 10 s. */
function useCounts(q, newest) {
  const { data, isCurrent, reload } = useLive(q ? "/jobs/count" : null, { q, newest }, { everyMs: COUNT_MS });
  const totals = overview.value && !overview.value.is_partial ? overview.value.totals : null;
  const counts = q ? data : totals && { by_state: totals, total: sum(totals) };
  // Until the new numbers arrive, the tabs keep the last ones, so that they do not move.
  const shown = useRef({});
  if (counts) shown.current = counts;
  const { by_state: byState, total, is_capped: isCapped } = shown.current;
  const show = (number) => `${count(number)}${isCapped ? "+" : ""}`;
  return { byState, total, show, isKnown: q ? isCurrent : totals !== null, all: totals ? sum(totals) : Infinity, recount: reload };
}

function StateTabs({ state, counts: { byState, total, show }, onChange }) {
  const chip = (value, label, number, help) => html`<button type="button" class="chip" key=${value} aria-pressed=${state === value} title=${help}
    onClick=${() => onChange(value)}>${label} ${byState && html`<span class="muted">${show(number)}</span>`}</button>`;
  return html`<div class="chips" role="group" aria-label="State">${chip("", "All", total)}
    ${texts.value.states.map(({ name, help }) => (name !== "stale" || byState?.stale || state === "stale") &&
      chip(name, html`<${State} state=${name} />`, byState?.[name] ?? 0, help))}</div>`;
}

const find = (changes) => setQuery({ before: null, ...changes }, { push: true });

/** No rows: which part of the filter to drop, or how to add a job. */
function NoJobs({ text, state, newest }) {
  const terms = text.match(/(?:"(?:[^"\\]|\\.)*"?|[^\s"])+/g) ?? [];
  if (!terms.length && !state) {
    return html`<${Empty} icon="jobs" title="The queue is empty">
      <p>Jobs that you add appear here within two seconds. <a href=${link("enqueue")}>Enqueue a job</a>.</p><//>`;
  }
  return html`<${Empty} icon="search" title=${state ? `No ${stateWord(state).toLowerCase()} jobs match` : "No jobs match"}>
    <div class="stack">
      ${newest && html`<p>The search covered the newest ${count(newest)} jobs.</p>`}
      <div class="row">
        ${newest && html`<${Button} kind="primary" onClick=${() => setQuery({ newest: "all" })}>Search all jobs<//>`}
        ${state && html`<${Button} onClick=${() => find({ state: null, q: text })}>All states<//>`}
        ${terms.map((term) => html`<${Button} key=${term} onClick=${() => find({ state, q: terms.filter((each) => each !== term).join(" ") })}>
          Drop <span class="mono">${term}</span><//>`)}
      </div>
    </div><//>`;
}

export default function Jobs({ query }) {
  const { text, others, state, filter } = readQuery(query);
  const [selected, setSelected] = useState(new Set());
  const [isAll, setAll] = useState(false);
  const [cursor, setCursor] = useState(null);
  const [isChoosing, setChoosing] = useState(false);
  const anchor = useRef(null);
  const trail = useRef([]);

  const hasSelection = selected.size > 0 || isAll;
  const isInUse = () => hasSelection || cursor || document.querySelector("dialog[open], .jobs:hover, .jobs:focus-within");
  const { view, error, isCurrent, show } = useJobs({ q: filter, before: query.before, newest: query.newest }, isInUse);
  const counts = useCounts(others, query.newest);
  const rows = view?.rows ?? [];
  const ids = rows.map((job) => job.id);

  const select = (next) => {
    setAll(false);
    setSelected(new Set(next));
  };
  const clear = () => {
    select([]);
    setCursor(null);
  };
  useEffect(() => {
    if (query.focus) setQuery({ focus: null });
  }, []);
  useEffect(clear, [filter]);

  const move = (step) => {
    const index = ids.indexOf(cursor);
    const next = index < 0 && step < 0 ? ids.length - 1 : index + step;
    setCursor(ids[Math.min(ids.length - 1, Math.max(0, next))] ?? null);
  };
  const toggle = () => {
    if (!cursor) return;
    anchor.current = cursor;
    select(selected.has(cursor) ? [...selected].filter((id) => id !== cursor) : [...selected, cursor]);
  };
  const extend = () => {
    if (!cursor) return;
    const [from, to] = [Math.max(0, ids.indexOf(anchor.current)), ids.indexOf(cursor)].sort((one, other) => one - other);
    select([...selected, ...ids.slice(from, to + 1)]);
  };
  const run = (action) => {
    const chosen = selected.size ? [...selected] : [cursor].filter(Boolean);
    if (!isAll && !chosen.length) return;
    const onDone = () => {
      clear();
      counts.recount();
      show();
    };
    openBulk({ action, onDone, ...(isAll ? { q: filter, title: `${texts.value.actions[action].label} all that match` } : { ids: chosen }) });
  };
  const turn = (before) => {
    setCursor(null);
    find({ before });
    window.scrollTo(0, 0);
  };
  const older = () => {
    if (!view?.hasMore) return;
    trail.current.push(query.before);
    turn(ids.at(-1));
  };
  const newer = () => query.before && turn(trail.current.pop());

  useShortcuts("Jobs", [
    ["j, ArrowDown", "Next row", () => move(1)],
    ["k, ArrowUp", "Previous row", () => move(-1)],
    ["Enter", "Open the job", () => cursor && navigate(`jobs/${cursor}`)],
    ["x", "Select the row", toggle],
    ["X", "Select up to the row", extend],
    ["a", "Select all on this page", () => select(ids)],
    ["r", "Retry the selection or the row", () => (whyNot("retry") ? toast(whyNot("retry"), "warn") : run("retry"))],
    ["Escape", "Clear the selection", clear],
    ["]", "Older jobs", older],
    ["[", "Newer jobs", newer],
  ]);

  const selectAll = ({ currentTarget }) => {
    currentTarget.nextElementSibling.focus(); // This button goes.
    setAll(true);
  };
  const gone = rows.filter((job) => job.isGone).length;
  const fresh = view?.fresh > EXTRA_ROWS ? `${EXTRA_ROWS}+` : view?.fresh;
  const changes = [fresh && `${fresh} new`, gone && `${gone} left`].filter(Boolean).join(", ");
  const isPart = view?.newest && counts.all > view.newest;
  const isBad = error?.code === "bad_filter";
  const matching = counts.isKnown ? (state ? counts.byState?.[state] : counts.total) : null;
  const hasStale = isAll ? counts.byState?.stale : rows.some((job) => job.state === "stale" && selected.has(job.id));
  return html`<${Page}
    title="Jobs"
    hint=${isCurrent && html`${isPart && `newest ${count(view.newest)} searched, `}${Math.round(view.elapsed_ms)}ms
      ${isPart && html` <${Button} kind="quiet" onClick=${() => setQuery({ newest: "all" })}>Search all<//>`}`}
    actions=${html`<span role="status">${changes && html`<${Button} class="pill" onClick=${show}>${changes} – show<//>`}</span>
      <${Button} aria-haspopup="dialog" onClick=${() => setChoosing(true)}>Columns…<//>
      <${Button} href=${link("enqueue")}>Enqueue<//>`}
  >
    <${StateTabs} state=${state} counts=${counts} onChange=${(value) => find({ state: value, q: others })} />
    <${FilterBox} value=${text} error=${error} autoFocus=${query.focus} onApply=${(q, isFinal) => setQuery({ q, before: null }, { push: isFinal })} />
    ${view?.hidden_rows && html`<${Notice} kind="warn">Row-level security hides jobs from this database role, so the list is not complete.<//>`}
    <div class=${`jobs ${isOutage(error) || (view && !isCurrent) ? "stale-data" : ""}`}>
      ${(view || !isBad) && html`<${Loaded} result=${{ data: view, error: isBad ? null : error, reload: show }}>${() => html`<${Table} label="Jobs"
        columns=${COLUMNS.filter(isShown)} rows=${rows} keyOf=${(job) => job.id} selected=${isAll ? new Set(ids) : selected} onSelect=${select} cursor=${cursor}
        onOpen=${(job) => navigate(`jobs/${job.id}`)} empty=${html`<${NoJobs} text=${others} state=${state} newest=${view.newest} />`} />`}<//>`}
    </div>
    ${view && (query.before || view.hasMore) && html`<nav class="pager" aria-label="Pages of jobs">
      <${Button} onClick=${newer} disabledReason=${query.before ? null : "These are the newest jobs."}>‹ Newer<//>
      <${Button} onClick=${older} disabledReason=${view.hasMore ? null : "These are the oldest jobs."}>Older ›<//></nav>`}
    ${hasSelection && html`<div class="dock"><div class="selection" role="region" aria-label="Selection">
      <strong>${isAll ? `All ${counts.show(matching)} matching jobs` : plural(selected.size, "job")} selected</strong>
      ${!isAll && matching > selected.size && html`<${Button} onClick=${selectAll}>Select all ${counts.show(matching)} matching<//>`}
      <${Button} kind="quiet" onClick=${clear}>Clear<//>
      <span class="actions end">${Object.entries(texts.value.actions).map(([action, { label, permission, is_dangerous: isDangerous }]) => (action !== "unlock" || hasStale) &&
        html`<${Button} kind=${isDangerous && "danger"} disabledReason=${whyNot(permission)} onClick=${() => run(action)}>${label}…<//>`)}</span>
    </div></div>`}
    ${isChoosing && html`<${ColumnChoice} onClose=${() => setChoosing(false)} />`}
  <//>`;
}
