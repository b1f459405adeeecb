/** The report of `graphile-worker doctor`: facts about the database, and findings. */
import { html } from "../lib.js";
import { count } from "../format.js";
import { useLive } from "../live.js";
import { Button, Code, Empty, Facts, Icon, Loaded, Page, Panel } from "../ui/index.js";

export const title = "Diagnosis";

const words = (name) => name.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());

const Finding = ({ finding: { id, severity, title: problem, affected, evidence, advice, shell, sql } }) =>
  html`<article class="alert" data-severity=${severity}>
    <${Icon} name=${severity} label=${severity} /><h2 class="alert-title">${problem}</h2>
    <span class="actions"><span class="badge">${id}</span>${affected > 1 && html`<span class="badge">${count(affected)} affected</span>`}</span>
    <div class="more stack">
      ${evidence.length > 0 && html`<ul class="muted">${evidence.map((each) => html`<li>${each}</li>`)}</ul>`}
      <p>${advice}</p>
      ${shell && html`<${Code} text=${shell} language="Shell" copy />`}${sql && html`<${Code} text=${sql} language="SQL" copy />`}
    </div></article>`;

export default function Diagnosis() {
  const result = useLive("/diagnosis", {}, { isFrozen: true });
  return html`<${Page} title="Diagnosis" hint="The report of “graphile-worker doctor”, at most 30 s old." 
    actions=${html`<${Button} icon="retrying" onClick=${result.reload}>Check again<//>`}>
    <${Loaded} result=${result}>${({ findings, facts }) => html`
      ${findings.length
        ? html`<div class="alerts">${findings.map((finding) => html`<${Finding} finding=${finding} />`)}</div>`
        : html`<${Empty} icon="succeeded" title="No findings">The database, the schema and the queue are as they should be.<//>`}
      <${Panel} title="Facts"><${Facts} facts=${Object.fromEntries(Object.entries(facts).map(([name, value]) => [words(name), value]))} /><//>`}<//>
  <//>`;
}
