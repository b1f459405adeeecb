/** The frame of a page and its parts. */
import { html } from "../lib.js";
import { count } from "../format.js";
import { Changes } from "./act.js";
import { Button } from "./button.js";
import { Chart } from "./chart.js";
import { Code } from "./code.js";
import { Icon } from "./icon.js";
import { link } from "../router.js";
import { Rich, Spark } from "./rich.js";

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
export const Facts = ({ facts }) =>
  html`<dl class="facts">${facts.map(([name, value]) => value && html`<dt>${name}</dt><dd><${Rich} text=${value} /></dd>`)}</dl>`;

/** Figures of the server. `values(name)` has the series that a figure names. */
export const Stats = ({ stats, values = () => [] }) => html`<div class="stats">
  ${stats.map(({ label, value, of, note, tone = "", link: path, series, about }, index) => html`
  <${path ? "a" : "div"} key=${index} class="stat" href=${path && link(path)}>
    <span class="stat-label"><${Rich} text=${label} /></span>
    <span class=${`stat-value ${tone}`}>${value}${of && html` <span class="muted small">${of}</span>`}</span>
    ${values(series).length > 1 && html`<${Spark} values=${values(series)} label=${about} />`}
    ${note && html`<span class="stat-note"><${Rich} text=${note} /></span>`}<//>`)}</div>`;

/** A panel that the server defines. A chart gets its points from the `data`. */
export const Part = ({ title, hint, facts, code, text, list, chart, data }) => html`<${Panel} title=${title} hint=${hint && html`<${Rich} text=${hint} />`}>
  ${chart && html`<${Chart} chart=${chart} ...${data} />`}${text && html`<p><${Rich} text=${text} /></p>`}${facts && html`<${Facts} facts=${facts} />`}
  ${code && html`<${Code} text=${code} label=${title} copy />`}
  ${list && html`<div class="row">${list.map((each) => html`<${Rich} text=${each} />`)}</div>`}<//>`;

/** Findings, each with its cause and one safe action. With `isFull`, its commands are open. */
export const Alerts = ({ alerts, isFull }) => alerts.length > 0 && html`<ul class="alerts">
  ${alerts.map(({ id, action, severity, title, evidence, advice, shell, sql, link: path, affected }) => html`
  <li class="alert" key=${id + title} data-severity=${severity} data-full=${isFull}>
    <${Icon} name=${severity} label=${severity} /><h2 class="alert-title">${title}</h2>
    <div class="alert-text">${[...evidence, advice].map((line) => html`<div>${line}</div>`)}
      ${[["Command", shell], ["SQL", sql]].map(([name, text]) => text && html`<details open=${isFull}><summary>${name}</summary>
        <${Code} text=${text} language=${name} copy /></details>`)}</div>
    <div class="actions">${isFull && html`<span class="badge">${id}</span>`}
      ${isFull && affected > 1 && html`<span class="badge">${count(affected)} affected</span>`}
      ${path && html`<${Button} href=${link(path)}>Show<//>`}${action && html`<${Changes} changes=${[{ kind: "primary", ...action }]} />`}</div></li>`)}</ul>`;

/** A choice among `{value, label, help}`. */
export const Chips = ({ label, items, value: chosen, onChange }) => html`<div class="chips" role="group" aria-label=${label}>
  ${items.map(({ value, label: text, help }) => html`<button type="button" class="chip" key=${value} title=${help} aria-pressed=${value === chosen}
    onClick=${() => onChange(value)}>${text}</button>`)}</div>`;
