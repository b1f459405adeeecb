/** Jobs: find them, follow them live, and change many at once. */
import {
  Button, Chips, Dialog, FilterBox, Loaded, Missing, Notice, Page, State, Table, count, html, isOutage, link, navigate, openBulk, openDialog, overview, plural,
  setQuery, stored, sum, texts, toast, useEffect, useLayoutEffect, useLive, useRef, useShortcuts, useState, whyNot,
} from "../kit.js";

const PAGE_SIZE = 50;
const EXTRA_ROWS = 50;
const COUNT_MS = 10000;
const GONE = ["unknown", "Left the list", "Completed, removed, or no longer matched by the filter"];
/** All columns. Those with a `choice` can be hidden: "on" is shown until the user decides. */
const COLUMNS = texts.value.pages.find(({ path }) => path === "jobs").columns;

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

/** The last rows: Back shows them at once. */
let kept = null;

/** Rows are updated in place, and marked when they left the list. New ones are counted. */
function update(before, { jobs, next, ...page }) {
  if (!before) return { ...page, rows: jobs.slice(0, PAGE_SIZE), hasMore: next !== null || jobs.length > PAGE_SIZE, fresh: 0 };
  const current = new Map(jobs.map((job) => [job.id, job]));
  // Below the last job of the answer, nothing is known.
  const end = next === null ? -Infinity : BigInt(next);
  const rows = before.rows.map((job) => current.get(job.id) ?? (BigInt(job.id) < end ? job : { ...job, isGone: true, state: GONE, when: null }));
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
  // Until the new numbers arrive, the tabs keep the last ones.
  const shown = useRef({});
  if (counts) shown.current = counts;
  const { by_state: byState, total, is_capped: isCapped } = shown.current;
  const show = (number) => `${count(number)}${isCapped ? "+" : ""}`;
  return { byState, total, show, isKnown: q ? isCurrent : totals !== null, all: totals ? sum(totals) : Infinity, recount: reload };
}

function StateTabs({ state, counts: { byState, total, show }, onChange }) {
  const item = (value, label, number, help) => ({ value, help, label: html`${label} ${byState && html`<span class="muted">${show(number)}</span>`}` });
  const states = texts.value.states.filter(({ name }) => name !== "stale" || byState?.stale || state === "stale");
  return html`<${Chips} label="State" value=${state} onChange=${onChange} items=${[item("", "All", total),
    ...states.map(({ name, help }) => item(name, html`<${State} state=${name} />`, byState?.[name] ?? 0, help))]} />`;
}

const find = (changes) => setQuery({ before: null, ...changes }, { push: true });

export default function Jobs({ query }) {
  const { text, others, state, filter } = readQuery(query);
  const [selected, setSelected] = useState(new Set());
  const [isAll, setAll] = useState(false);
  const [cursor, setCursor] = useState(null);
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
  useEffect(() => setQuery({ focus: null }), []);
  useLayoutEffect(clear, [filter]);

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
      <${Button} aria-haspopup="dialog" onClick=${() => openDialog((close) => html`<${ColumnChoice} onClose=${close} />`)}>Columns…<//>
      <${Button} href=${link("enqueue")}>Enqueue<//>`}
  >
    <${StateTabs} state=${state} counts=${counts} onChange=${(value) => find({ state: value, q: others })} />
    <${FilterBox} value=${text} error=${error} autoFocus=${query.focus} onApply=${(q, isFinal) => setQuery({ q, before: null }, { push: isFinal })} />
    ${view?.hidden_rows && html`<${Notice} kind="warn">Row-level security hides jobs from this database role, so the list is not complete.<//>`}
    <div class=${`jobs ${isOutage(error) || (view && !isCurrent) ? "stale-data" : ""}`}>
      ${(view || !isBad) && html`<${Loaded} result=${{ data: view, error: isBad ? null : error, reload: show }}>${() => html`<${Table} label="Jobs"
        columns=${COLUMNS.filter(isShown)} rows=${rows} selected=${isAll ? new Set(ids) : selected} onSelect=${select} cursor=${cursor}
        onOpen=${(job) => navigate(`jobs/${job.id}`)} empty=${html`<${Missing} icon="search" empty=${view.view.empty ?? []} />`} />`}<//>`}
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
  <//>`;
}
