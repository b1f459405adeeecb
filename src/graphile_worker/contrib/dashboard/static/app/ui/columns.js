/** Makers of columns that many tables have: `number("jobs", "Jobs")`. Zeros are shown, missing values are not. */
import { html } from "../lib.js";
import { age, count } from "../format.js";
import { JobLink, State, TaskLink, Time, WorkerLink } from "./values.js";

const column = (show, common) => (key, label, more) =>
  ({ key, label, sort: true, render: (row) => row[key] != null && show(row[key]), ...common, ...more });

export const text = column((value) => value);
export const code = column((value) => html`<code>${value}</code>`);
/** Text that is cut where it does not fit. */
export const line = column((value) => html`<span title=${value}>${value.split("\n")[0]}</span>`, { fill: true, card: "line" });
export const when = column((value) => html`<${Time} at=${value} />`);
export const about = column((value) => html`<${Time} at=${value} isEstimate />`);
export const number = column(count, { align: "right" });
export const duration = column(age, { align: "right" });
export const state = column((value) => html`<${State} state=${value} />`, { card: "end" });
export const job = column((value) => html`<${JobLink} id=${value} />`);
export const task = column((value) => html`<${TaskLink} id=${value} />`);
export const worker = column((value) => html`<${WorkerLink} id=${value} />`);

/** Columns by state without those of rare states that no row has, by `isUsed(state)`. */
export const withoutRare = (columns, isUsed) => columns.filter(({ key }) => !["waiting", "stale"].includes(key) || isUsed(key));

/** The column of buttons. */
export const actions = (render) => ({ key: "actions", label: "", card: "actions", render: (row) => html`<div class="actions">${render(row)}</div>` });
