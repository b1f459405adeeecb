/** The frame of a page and its parts. */
import { html, useRef } from "../lib.js";
import { Icon } from "./icon.js";
import { Spark } from "./values.js";

const optional = (content, name) => content && html`<div class=${name}>${content}</div>`;
const head = (name, title, { hint, actions }) =>
  html`<header class=${name}>${title}${optional(hint, "hint")}${optional(actions, "actions")}</header>`;

export const Page = ({ title, children, ...rest }) =>
  html`<section class="page">${head("page-head", html`<h1>${title}</h1>`, rest)}${children}</section>`;

export const Panel = ({ title, children, ...rest }) =>
  html`<section class="panel">${head("panel-head", html`<h2>${title}</h2>`, rest)}<div class="panel-body">${children}</div></section>`;

/** In the place of a list without rows. */
export const Empty = ({ title, icon, children }) =>
  html`<div class="empty"><${Icon} name=${icon} /><h2>${title}</h2><div class="stack">${children}</div></div>`;

/** A remark of a kind: "info", "good", "warn" or "error". */
export const Notice = ({ kind = "info", actions, children }) =>
  html`<div class="notice" data-kind=${kind} role=${kind === "error" ? "alert" : undefined}>
    <${Icon} name=${kind} /><div>${children}</div>${optional(actions, "actions")}</div>`;

/** In the place of data that is on its way. */
export const Loading = ({ label = "Loading" }) =>
  html`<div class="panel loading" role="status" aria-label=${label}><span /><span /><span /><span /></div>`;

/** Names and values. Those without a value are left out. */
export const Facts = ({ facts, class: more = "" }) =>
  html`<dl class=${`facts ${more}`}>${Object.entries(facts).map(([name, value]) => value && html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

/** The facts of a row, by the labels of its columns. */
export const factsOf = (columns, row) => Object.fromEntries(columns.map(({ label, render }) => [label, label && render(row)]));

/** A figure, in a list of the class "stats". The label of its `values` over time is `spark`. */
export const Stat = ({ label, value, note, href, tone = "", values = [], spark }) => html`<${href ? "a" : "div"} class="stat" href=${href}>
  <span class="stat-label">${label}</span><span class=${`stat-value ${tone}`}>${value}</span>
  ${values.length > 1 && html`<${Spark} values=${values} label=${spark} />`}${note && html`<span class="stat-note">${note}</span>`}<//>`;

/** A choice among `{value, label}`. */
export function Tabs({ items, value, onChange, label, kind }) {
  const root = useRef(null);
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (items.findIndex((item) => item.value === value) + step + items.length) % items.length;
    onChange(items[next].value);
    root.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} data-kind=${kind} ref=${root} onKeyDown=${onKeyDown}>
    ${items.map((item) => html`<button type="button" class="tab" role="tab" key=${item.value} aria-selected=${item.value === value}
      tabindex=${item.value === value ? 0 : -1} onClick=${() => onChange(item.value)}>${item.label}</button>`)}</div>`;
}
