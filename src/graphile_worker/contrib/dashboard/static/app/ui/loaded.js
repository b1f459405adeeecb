/** What a page shows while its data loads, when it is missing, and when it is old. */
import { html } from "../lib.js";
import { isOutage } from "../api.js";
import { setQuery } from "../router.js";
import { session } from "../state.js";
import { Button } from "./button.js";
import { Code } from "./code.js";
import { Empty, Loading, Notice } from "./page.js";
import { Rich } from "./rich.js";

/** An error in the place of data. */
export function Problem({ error, onRetry }) {
  const install = error.code === "schema_missing" && `graphile-worker migrate --schema ${session.value?.schema}`;
  const code = error.problem?.sql ?? install;
  return html`<${Empty} icon="stale" title=${error.title}><p>${error.detail}</p>
    ${code && html`<${Code} text=${code} copy />`}${onRetry && html`<p><${Button} onClick=${onRetry}>Try again<//></p>`}<//>`;
}

/** Renders `children(data)` of a result of `useLive`. The last good data stays when a request fails. */
export function Loaded({ result: { data, error, reload }, children }) {
  if (!data || error?.code === "not_found") return error ? html`<${Problem} error=${error} onRetry=${reload} />` : html`<${Loading} />`;
  // The banner of the shell reports outages, and the filter its own mistakes.
  const isShown = error && !isOutage(error) && error.code !== "bad_filter";
  return html`${isShown && html`<${Notice} kind="warn" actions=${html`<${Button} onClick=${reload}>Try again<//>`}>
    <strong>${error.title}.</strong> ${error.detail}<//>`}${children(data)}`;
}

/** Buttons of the pages of an answer. `cursor` is the parameter of the query string for them. */
export function Pager({ next, cursor, query }) {
  const button = (label, value) => html`<${Button} onClick=${() => setQuery({ [cursor]: value })}>${label}<//>`;
  return html`<div class="pager">${query[cursor] && button("First page", null)}${next && button("Next page", next)}</div>`;
}

export const Missing = ({ icon, empty: [title, text] }) => html`<${Empty} icon=${icon} title=${title}><${Rich} text=${text} /><//>`;
