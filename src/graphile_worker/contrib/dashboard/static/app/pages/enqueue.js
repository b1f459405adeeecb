/** Adds a job, whose payload is checked by its task, if known. */
import {
  Button, Field, Fields, JsonEditor, Notice, Page, Panel, Part, Rich, State, get, html, jsonProblem, post, pretty, readFields, texts,
  tickNow, useEffect, useLive, useState, whyNot,
} from "../kit.js";

const CHECK_MS = 400;
const RETRY_MS = 2000;
const EMPTY = "{}";

const toBody = ({ task, payload, ...form }) => ({ ...readFields(texts.value.enqueue_fields, form), task: task.trim(), payload });

/** The fields of a job that is duplicated. */
async function readJob(id) {
  const [{ job }, { text, is_redacted: isRedacted, is_truncated: isCut }] = await Promise.all([get(`/jobs/${id}`), get(`/jobs/${id}/payload`)]);
  const payload = pretty(text)?.map(([, part]) => part).join("") ?? text;
  const numbers = { priority: String(job.priority || ""), max_attempts: String(job.max_attempts) };
  const warning = (isCut && "The payload is too long to be duplicated here.")
    || (isRedacted && "Replace the masked values (•••) of this payload.");
  return [{ task: job.task, payload, queue_name: job.queue ?? "", flags: job.flags.join(", "), ...numbers }, warning];
}

export default function Enqueue({ query: { task: given = "", from } }) {
  const tasks = useLive("/tasks", {}, { isFrozen: true }).data?.tasks ?? [];
  const [form, setForm] = useState({ task: given, payload: EMPTY, job_key_mode: "replace" });
  const [check, setCheck] = useState(null);
  const [[kind, text], setNotice] = useState([]);
  const change = (values) => setForm((last) => ({ ...last, ...values }));
  const report = (error) => setNotice(["error", error.detail]);
  const set = (name) => ({ value: form[name] ?? "", onInput: (event) => change({ [name]: event.target.value }) });
  useEffect(() => {
    if (!from) return;
    readJob(from).then(([values, warning]) => {
      change(values);
      if (warning) setNotice(["warn", warning]);
    }, report);
  }, [from]);
  const task = form.task.trim();
  const syntax = jsonProblem(form.payload);
  const obstacle = whyNot("enqueue");
  useEffect(() => {
    setCheck(null);
    if (!task || syntax || obstacle) return undefined;
    let isCurrent = true;
    let timer = setTimeout(async function ask() {
      try {
        const answer = await post("/jobs/check", toBody(form));
        if (isCurrent) setCheck(answer);
      } catch ({ status }) {
        // An outage.
        if (isCurrent && !(status >= 400 && status < 500)) timer = setTimeout(ask, RETRY_MS);
      }
    }, CHECK_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [task, form.payload, obstacle]);
  const known = tasks.find((each) => each.identifier === task);
  const problems = (form.payload === EMPTY && !check?.isFinal ? null : check?.problems) ?? [];
  const payloadError = syntax
    ? `Line ${syntax.line}, column ${syntax.column}: ${syntax.message}.`
    : problems.length > 0 && problems.map((each) => html`<div><code>${each.path || "payload"}</code>: ${each.message}</div>`);
  const submit = async (event) => {
    event.preventDefault();
    if (syntax) return document.getElementById("payload").focus();
    try {
      const { id, is_new: isNew, is_duplicate: isCopy } = await post("/jobs", toBody(form));
      setNotice(["good", html`<span role="status">${isCopy ? "Duplicate of" : isNew === false ? "Updated" : "Added"} job <${Rich} text=${{ job: id }} />.</span>`]);
      return tickNow();
    } catch (error) {
      if (error.code !== "bad_payload") return report(error);
      setCheck({ ...check, task_is_known: true, isFinal: true, problems: error.problem.problems });
      return document.getElementById("payload").focus();
    }
  };
  return html`<${Page} title="Enqueue" hint=${from && html`a duplicate of job <${Rich} text=${{ job: from }} />`}>
    ${text && html`<${Notice} kind=${kind}>${text}<//>`}
    <form class="split" data-wide="left" onSubmit=${submit}>
      <${Panel} title="Job"><div class="stack">
        <${Field} label="Task"><input class="input mono" list="tasks" required autocomplete="off" ...${set("task")} /><//>
        <datalist id="tasks">${tasks.map((each) => html`<option value=${each.identifier} />`)}</datalist>
        ${check?.task_is_known === false && html`<${Notice} kind="warn">No worker and no app is known to have this task.
          ${check.known_tasks_nearest.length > 0 && " Did you mean "}
          ${check.known_tasks_nearest.map((name) => html`<${Button} key=${name} onClick=${() => change({ task: name })}>${name}<//> `)}<//>`}
        <${Field} label="Payload (JSON)" error=${payloadError}><${JsonEditor} id="payload" badLine=${syntax?.line} ...${set("payload")} /><//>
        ${check?.unknown_keys?.length > 0 && html`<${Notice} kind="warn">
          The task has no parameter <code>${check.unknown_keys.join(", ")}</code>.<//>`}
        ${known?.signature && check?.problems.length === 0 && html`<p><${State} state="ok" word="The payload fits the task’s parameters." /></p>`}
        <div><${Button} kind="primary" type="submit" icon="enqueue" disabledReason=${obstacle}>Add job<//></div>
      </div><//>
      <div class="stack">
        ${known && html`<${Part} ...${known.parameters} />`}
        <${Panel} title="Options" hint="Empty fields use the defaults."><div class="form-grid">
          <${Fields} fields=${texts.value.enqueue_fields} values=${form} onChange=${change} />
        </div><//>
      </div>
    </form>
  <//>`;
}
