/** Failing jobs, grouped by task and by what their errors have in common. */
import { html } from "../lib.js";
import { get } from "../api.js";
import { openBulk } from "../bulk.js";
import { count, plural } from "../format.js";
import { useLive } from "../live.js";
import { jobsPath, link, navigate } from "../router.js";
import { whyNot } from "../state.js";
import { Button, Code, Facts, JobLink, List, Loaded, Menu, Page, Panel, column, factsOf, toast } from "../ui/index.js";

export const title = "Errors";

const path = (fingerprint) => `errors/${encodeURIComponent(fingerprint)}`;
const openJobs = (fingerprint) =>
  get(`/${path(fingerprint)}`).then(({ ids }) => navigate(jobsPath(`id:${ids.join(",")}`)), (error) => toast(error.detail, "error"));

function actions({ fingerprint }) {
  const run = (action) => ({ disabledReason: whyNot(action), onClick: () => openBulk({ action, fingerprint }) });
  return html`<${Button} icon="retrying" ...${run("retry")}>Retry…<//>
    <${Menu} label="More actions" icon="more" items=${[
      { label: "Open in Jobs", icon: "jobs", onClick: () => openJobs(fingerprint) },
      { label: "Fail permanently…", icon: "failed", kind: "danger", ...run("fail") },
      { label: "Delete…", icon: "close", kind: "danger", ...run("delete") }]} />`;
}

const COLUMNS = [
  column.text("summary", "Error", { fill: true, card: "lead",
    render: ({ fingerprint, summary }) => html`<a class="mono" href=${link(path(fingerprint))} title=${summary}>${summary}</a>` }),
  column.task("task", "Task"),
  column.number("jobs", "Jobs", { card: "end" }),
  column.number("retrying", "Retrying"),
  column.number("failed", "Failed"),
  column.about("first_at", "First"),
  column.about("last_at", "Last"),
  column.actions(actions),
];

export default function Errors({ params: { fingerprint } }) {
  return fingerprint ? html`<${Group} key=${fingerprint} fingerprint=${fingerprint} />` : html`<${Groups} />`;
}

function Groups() {
  const result = useLive("/errors");
  const { searched, is_complete: isComplete } = result.data ?? {};
  return html`<${Page} title="Errors" hint=${searched > 0 && `The ${isComplete ? "" : "newest "}${plural(searched, "job")} with an error`}>
    <${List} result=${result} rows="groups" label="Groups of errors" columns=${COLUMNS} keyOf=${(group) => group.fingerprint}
      order=${{ key: "jobs", isDown: true }} onOpen=${(group) => navigate(path(group.fingerprint))} icon="succeeded"
      empty=${["No job has an error", "Jobs that fail appear here, grouped by what their errors have in common."]} /><//>`;
}

function Group({ fingerprint }) {
  return html`<${Loaded} result=${useLive(`/${path(fingerprint)}`)}>${(group) => html`
    <${Page} title=${group.summary.split(":")[0]} hint=${html`<a href=${link("errors")}>All errors</a>`} actions=${actions(group)}>
      <${Panel} title="Group"><${Facts} facts=${factsOf(COLUMNS, group)} /><//>
      <${Panel} title="Newest error" hint=${html`of job <${JobLink} id=${group.sample.id} />`}>
        <${Code} text=${group.sample.error} label="Newest error" copy /><//>
      <${Panel} title="Jobs" hint=${group.jobs > group.ids.length && `the newest ${group.ids.length} of ${count(group.jobs)}`}>
        <div class="row">${group.ids.map((id) => html`<${JobLink} key=${id} id=${id} />`)}</div><//>
    <//>`}<//>`;
}
