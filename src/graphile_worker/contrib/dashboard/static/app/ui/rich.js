/** Values by their kinds, in texts and in columns that the server defines. */
import { html } from "../lib.js";
import { age, ago, count, secondsSince, time } from "../format.js";
import { jobsPath, link, quote } from "../router.js";
import { texts } from "../state.js";
import { Button, Copy } from "./button.js";
import { Code } from "./code.js";
import { Icon } from "./icon.js";

const WORDS = { stale: "Stale lock", ok: "On time" };

export const stateWord = (state) => WORDS[state] ?? state.replace(/^./, (letter) => letter.toUpperCase());

/** A state as an icon, a word and a color. */
export const State = ({ state, word = stateWord(state), help = texts.value.states.find(({ name }) => name === state)?.help }) =>
  html`<span class="state" data-state=${state} title=${help}><${Icon} name=${state} />${word}</span>`;

/** A time by the database's clock: "ago", "at" or "both", with the other form as its title. */
export function Time({ at, kind = "ago", isEstimate }) {
  const relative = isEstimate ? `≈ ${ago(at)}` : ago(at);
  const absolute = time(at);
  return html`<time class="nowrap" datetime=${at} title=${kind === "at" ? relative : absolute}>
    ${kind === "ago" ? relative : absolute}${kind === "both" && html` <span class="muted">(${relative})</span>`}</time>`;
}

const classed = (name) => (value) => html`<span class=${name}><${Rich} text=${value} /></span>`;
const linkTo = (page) => (id) => html`<a class="mono" href=${link(`${page}/${encodeURIComponent(id)}`)}>${id}</a>`;
const badge = (kind) => (value) => html`<span class="badge" data-kind=${kind}>${value}</span>`;
const filtered = (filter, text, kind) => html`<a class=${kind ?? "mono"} href=${link(jobsPath(filter))}>${text}</a>`;

/** How a value is shown. In a column, the row and the column follow the value. */
const KINDS = {
  rich: (value) => html`<${Rich} text=${value} />`,
  muted: classed("muted"), strong: classed("strong"), mono: classed("mono wrap"),
  name: (value) => html`<span class="mono name" title=${value}>${value}</span>`,
  small: (value) => html`<div class="muted small"><${Rich} text=${value} /></div>`,
  code: (value) => html`<code>${value}</code>`,
  list: (value) => value.join(", "),
  /** Text that is cut where it does not fit. */
  line: (value) => html`<span title=${value}>${value.split("\n")[0]}</span>`,
  copy: (value) => html`<span class="mono">${value}</span> <${Copy} text=${value} label="Copy the key" />`,
  warn: badge("warn"), bad: badge("bad"),
  ago: (value) => html`<${Time} at=${value} />`,
  at: (value) => html`<${Time} at=${value} kind="at" />`,
  both: (value) => html`<${Time} at=${value} kind="both" />`,
  about: (value) => html`<${Time} at=${value} isEstimate />`,
  for: (value) => html`<span class="nowrap" title=${time(value)}>for ${age(Math.max(0, Math.round(secondsSince(value))))}</span>`,
  number: count,
  amount: (value) => html`<${Rich} text=${value} />`,
  capped: (value, row) => count(value) + (row.is_capped ? "+" : ""),
  age: (value, row) => html`<span class=${row?.tone}>${age(value)}</span>`,
  positive_age: (value) => value > 0 && age(value),
  state: (value) => {
    const [state, word, help] = [value].flat();
    return html`<${State} state=${state} word=${word} help=${help} />`;
  },
  job: linkTo("jobs"), task: linkTo("tasks"), worker: linkTo("workers"),
  queue: (value) => filtered(`queue:${quote(value)}`, value),
  /** The jobs of a task in the state that names the column. */
  in_state: (value, { identifier }, { key }) => value > 0
    && filtered(`task:${quote(identifier)} state:${key}`, count(value), ["failed", "stale"].includes(key) ? "bad" : ""),
  button: ([text, path]) => html`<${Button} href=${link(path)}>${text}<//>`,
  sql: (value) => html`<${Code} text=${value} language="SQL" copy />`,
  link: ([text, path]) => html`<a class="mono" href=${link(path)} title=${text}>${text}</a>`,
  external: ([text, href]) => html`<a class="mono" href=${href} target="_blank" rel="noreferrer">${text}</a>`,
};
const RIGHT = ["number", "amount", "capped", "age", "positive_age", "in_state"];

/** A text, or a list of texts and of objects with one kind and its value: `["job ", {job: "1"}]`. */
export const Rich = ({ text }) => [text].flat().map((part) => {
  const [kind, value] = part && typeof part === "object" ? Object.entries(part)[0] : [];
  return kind ? KINDS[kind](value) : part;
});

/** The value of a row that a column names. Counts by state are below the row. */
export const valueOf = (row, key) => row[key] ?? row.counts?.[key];
export const isRight = ({ kind }) => RIGHT.includes(kind);
export function show(column, row) {
  const value = valueOf(row, column.key);
  return value != null && KINDS[column.kind](value, row, column);
}

/** A line without axes. The label describes it. */
export function Spark({ values, label }) {
  const top = Math.max(1e-9, ...values);
  const points = values.flatMap((value, index) => (value == null ? [] : `${index},${18 - (16 * value) / top}`));
  return html`<svg class="spark" viewBox=${`0 0 ${values.length - 1} 20`} preserveAspectRatio="none" role="img" aria-label=${label}>
    ${points.length > 1 && html`<polyline points=${points.join(" ")} fill="none" stroke="currentColor" stroke-width="1.5"
      stroke-linejoin="round" vector-effect="non-scaling-stroke" />`}</svg>`;
}
