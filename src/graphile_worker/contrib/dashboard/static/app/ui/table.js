/** Tables, which become cards on phones. */
import { html, useLayoutEffect, useRef, useState } from "../lib.js";
import { Icon } from "./icon.js";
import { isRight, show, valueOf } from "./rich.js";

const CONTROL = "a, button, input, label, summary, [role=menu]";
const BLANK = [null, undefined, false, "", "–"];

/**
 * Columns are those of the server, and `rowKey` names the value that identifies a row. `selected`
 * and `onSelect` are sets of these values, `cursor` is one of them. `actions(row)` renders buttons.
 */
export function Table({ columns: all, rows, rowKey = "id", selected = new Set(), onSelect, cursor, onOpen, empty, label, actions }) {
  const [order, setOrder] = useState(null);
  const body = useRef(null);
  const anchor = useRef(null);
  useLayoutEffect(() => body.current?.querySelector("tr.cursor")?.scrollIntoView({ block: "nearest" }), [cursor]);
  if (!rows.length && empty) return empty;
  const columns = all.filter(({ key, is_rare: isRare }) => !isRare || rows.some((row) => valueOf(row, key)));
  const sorted = arrange(rows, columns, order);
  const keys = sorted.map((row) => row[rowKey]);
  const chosen = keys.filter((key) => selected.has(key)).length;
  const pick = (range) => (event) => {
    const next = new Set(selected);
    const [from, to] = [keys.indexOf(anchor.current), keys.indexOf(range[0])].sort((one, other) => one - other);
    const all = event.shiftKey && range.length === 1 && from >= 0 ? keys.slice(from, to + 1) : range;
    all.forEach((key) => next[event.target.checked ? "add" : "delete"](key));
    [anchor.current] = range;
    onSelect(next);
  };
  const box = (name, range, number) => html`<input type="checkbox" aria-label=${name} checked=${number > 0 && number === range.length}
    indeterminate=${number > 0 && number < range.length} onClick=${pick(range)} />`;
  const open = (row) => (event) => event.target.closest(CONTROL) || String(getSelection()) || onOpen(row);
  const cell = (row) => (column) => {
    const content = column.kind === "actions" ? html`<div class="actions">${actions(row)}</div>` : show(column, row);
    const isBlank = BLANK.includes(content);
    return html`<td key=${column.key} data-align=${isRight(column) && "right"} data-label=${column.label} data-card=${column.card}
      class=${`${column.is_wide ? "fill" : ""} ${isBlank ? "blank muted" : ""}`}>${isBlank ? "–" : content}</td>`;
  };
  return html`<div class="table-wrap cards"><table class="table" aria-label=${label}>
    <thead><tr>${onSelect && html`<th class="pick">${box("Select all on this page", keys, chosen)}</th>`}
      ${columns.map((column) => html`<${Head} key=${column.key} ...${{ column, order, setOrder }} />`)}</tr></thead>
    <tbody ref=${body}>${sorted.map((row, index) => {
      const key = keys[index];
      const isChosen = selected.has(key);
      const kinds = { open: onOpen, chosen: isChosen, cursor: cursor === key };
      return html`<tr key=${key} class=${Object.keys(kinds).filter((kind) => kinds[kind]).join(" ")} onClick=${onOpen && open(row)}>
        ${onSelect && html`<td class="pick" data-card="pick">${box(`Select ${key}`, [key], Number(isChosen))}</td>`}${columns.map(cell(row))}</tr>`;
    })}</tbody></table></div>`;
}

function Head({ column, order, setOrder }) {
  const { key, label, sort } = column;
  const isOn = order?.key === key;
  const toggle = () => setOrder({ key, isDown: isOn ? !order.isDown : isRight(column) });
  return html`<th scope="col" data-align=${isRight(column) && "right"} aria-sort=${isOn ? (order.isDown ? "descending" : "ascending") : undefined}>${sort
    ? html`<button type="button" class="sort" onClick=${toggle}>${label}${isOn && html`<${Icon} name=${order.isDown ? "down" : "up"} />`}</button>`
    : label || html`<span class="visually-hidden">Actions</span>`}</th>`;
}

function arrange(rows, columns, order) {
  const { sort } = columns.find(({ key }) => key === order?.key) ?? {};
  if (!sort) return rows;
  // A list is sorted by its first item, for example by the next run of several.
  const value = (row) => [valueOf(row, sort)].flat()[0];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b) * (order.isDown ? -1 : 1);
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    // Rows without a value come last in both directions.
    return a == null || b == null ? (a == null) - (b == null) : compare(a, b);
  });
}
