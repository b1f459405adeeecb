/** Who changed which jobs, when, and with which filter. */
import { html } from "../lib.js";
import { useLive } from "../live.js";
import { JobLink, List, Page, Search, Time, column } from "../ui/index.js";

export const title = "Audit";

const SHOWN_IDS = 5;
const FIELDS = { actor: "Who", action: "Action", job_id: "Job id" };
const who = ({ actor, role }) => html`<strong>${actor ?? role}</strong>${actor && html` <span class="muted">as ${role}</span>`}`;
const ids = ({ job_ids: all }) => all.length > 0 && html`<span class="nowrap">
  ${all.slice(0, SHOWN_IDS).map((id) => html`<${JobLink} id=${id} /> `)}${all.length > SHOWN_IDS && "…"}</span>`;

const COLUMNS = [
  column.when("at", "When", { card: "end", render: ({ at }) => html`<${Time} at=${at} kind="both" />` }),
  column.text("actor", "Who", { card: "lead", render: who }),
  column.code("action", "Action"),
  column.number("count", "Jobs"),
  column.text("job_ids", "Ids", { render: ids }),
  column.code("filter", "Filter"),
  column.line("note", "Note"),
].map((each) => ({ ...each, sort: false }));

export default function Audit({ query }) {
  const { actor, action, job_id, before } = query;
  const result = useLive("/audit", { actor, action, job_id, before });
  return html`<${Page} title="Audit" hint="Changes by people and programs. What workers do is not listed.">
    <${Search} fields=${FIELDS} query=${query} cursor="before" />
    <${List} result=${result} rows="entries" label="Audit" columns=${COLUMNS} cursor="before" query=${query} icon="audit"
      empty=${actor || action || job_id ? ["No entry matches", "Change or clear the fields above."]
        : ["No entries", "Changes of jobs appear here."]} />
  <//>`;
}
