/** Values: states, times, links and lines. */
import { html } from "../lib.js";
import { ago, approx, time } from "../format.js";
import { link } from "../router.js";
import { texts } from "../state.js";
import { Icon } from "./icon.js";

const WORDS = { stale: "Stale lock", ok: "On time" };

export const stateWord = (state) => WORDS[state] ?? state.replace(/^./, (letter) => letter.toUpperCase());

/** A state as an icon, a word and a color. */
export const State = ({ state, word = stateWord(state) }) =>
  html`<span class="state" data-state=${state} title=${texts.value.states.find(({ name }) => name === state)?.help}><${Icon} name=${state} />${word}</span>`;

/** A time by the database's clock: "ago", "at" or "both", with the other form as its title. */
export function Time({ at, kind = "ago", isEstimate }) {
  if (!at) return html`<span class="muted">–</span>`;
  const relative = isEstimate ? approx(ago(at)) : ago(at);
  const absolute = time(at);
  return html`<time class="nowrap" datetime=${at} title=${kind === "at" ? relative : absolute}>
    ${kind === "ago" ? relative : absolute}${kind === "both" && html` <span class="muted">(${relative})</span>`}</time>`;
}

const linkTo = (page) => ({ id }) => html`<a class="mono" href=${link(`${page}/${encodeURIComponent(id)}`)}>${id}</a>`;

export const JobLink = linkTo("jobs");
export const TaskLink = linkTo("tasks");
export const WorkerLink = linkTo("workers");

/** A line without axes. The label describes it. */
export function Spark({ values, label }) {
  const top = Math.max(1e-9, ...values);
  const points = values.flatMap((value, index) => (value == null ? [] : `${index},${18 - (16 * value) / top}`));
  return html`<svg class="spark" viewBox=${`0 0 ${values.length - 1} 20`} preserveAspectRatio="none" role="img" aria-label=${label}>
    ${points.length > 1 && html`<polyline points=${points.join(" ")} fill="none" stroke="currentColor" stroke-width="1.5"
      stroke-linejoin="round" vector-effect="non-scaling-stroke" />`}</svg>`;
}
