/** A job: its state, why it does not run, its attempts, payload and error, and what to do. */
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { post } from "../api.js";
import { openBulk } from "../bulk.js";
import { age, ago, bytes, count, plural, sentence, time } from "../format.js";
import { useShortcuts } from "../keyboard.js";
import { useLive } from "../live.js";
import { jobsPath, link, navigate, quote } from "../router.js";
import { now, session, whyNot } from "../state.js";
import { ACTIONS } from "../strings.js";
import { Button, Code, Copy, JsonView, Loaded, Menu, Notice, Page, Panel, State, Time, toast } from "../ui/index.js";

export const title = "Job";

const jobsLink = (field, value) => html`<a class="mono" href=${link(jobsPath(`${field}:${quote(value)}`))}>${value}</a>`;

const copyItem = (label, text) => ({
  label,
  onClick: async () => {
    const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    toast(isCopied ? "Copied." : "The browser does not allow copying here.", isCopied ? "good" : "warn");
  },
});

function Actions({ id, data: { job, state, actions } }) {
  const isProduction = session.value?.environment?.level === "production";
  const describe = (action) => {
    const { label, permission } = ACTIONS[action];
    const isSure = action === "retry" && !isProduction;
    return {
      label: `${label}${isSure ? "" : "…"}`,
      disabledReason: whyNot(permission) || sentence(actions[action]),
      onClick: () => openBulk({ action, isSure, ids: [id], title: `${label}: job ${id}` }),
    };
  };
  const choose = (...names) => names.filter((action) => action in actions).map(describe);
  const retry = () => {
    const { disabledReason, onClick } = describe("retry");
    if (disabledReason) toast(disabledReason, "warn");
    else onClick();
  };
  useShortcuts("Job", [
    ["r", "Retry", retry],
    ["Escape", "Back", () => (history.length > 1 ? history.back() : navigate("jobs"))],
  ]);
  const others = choose("fail", "delete");
  return html`${choose("retry", state === "stale" && "unlock", "reschedule").map(({ label, ...rest }, index) =>
      html`<${Button} key=${label} kind=${index ? undefined : "primary"} ...${rest}>${label}<//>`)}
    <${Button} disabledReason=${whyNot("enqueue")} href=${link(`enqueue?from=${id}`)}>Duplicate…<//>
    <${Menu} label="Copy" items=${[
      copyItem("Link", location.href),
      copyItem("JSON", JSON.stringify(job, null, 2)),
      copyItem("SQL", `select * from ${session.value.schema}.jobs where id = ${id};`),
    ]} />
    ${others.length > 0 && html`<${Menu} label="More" items=${others.map((item) => ({ ...item, kind: "danger" }))} />`}`;
}

const WHY = { running: "What it is doing", stale: "Why it does not finish", failed: "Why it does not run again" };

function Why({ state, reasons }) {
  return reasons.length > 0 && html`<${Panel} title=${WHY[state] ?? "Why it is not running"}><div class="stack">
    ${reasons.map((reason, index) => html`<p class=${index ? "wrap" : "strong wrap"}>${sentence(reason.sentence)}</p>`)}</div><//>`;
}

function Progress({ progress: { fraction, message, updated_at: at } }) {
  const percent = fraction == null ? null : `${Math.round(fraction * 100)} %`;
  return html`<${Panel} title="Progress" hint=${html`<${Time} at=${at} />`}>
    ${percent && html`<progress max="1" value=${fraction} aria-label="Progress"></progress>`}
    <p>${[percent, message].filter(Boolean).join(": ")}</p><//>`;
}

const ENDINGS = { succeeded: "Succeeded", failed: "Failed permanently" };

/** What happened and what comes next, the oldest first. */
function events({ job, state, attempts, outcomes, reasons }) {
  const list = [{ at: job?.created_at ?? outcomes[0]?.created_at, text: "Created" }];
  for (const { number, started_at: at, duration, worker, error, error_class: kind } of attempts) {
    const text = `Attempt ${number} ran${duration == null ? "" : ` for ${age(duration)}`}${worker ? ` on ${worker}` : ""}`;
    list.push({ at, text, detail: error ?? kind, state: error || kind ? "failed" : duration == null ? "running" : "succeeded" });
  }
  for (const outcome of outcomes) {
    list.push({ at: outcome.finished_at, state: outcome.state, text: ENDINGS[outcome.state], detail: outcome.error });
  }
  const add = (at, text, more) => list.push({ at, text, state, ...more });
  if (job?.locked_at) add(job.locked_at, `Attempt ${job.attempts} of ${job.max_attempts} started on ${job.locked_by}`);
  if (state === "failed" && !outcomes.some((outcome) => outcome.state === "failed")) {
    add(job.failed_at ?? job.updated_at, `Failed permanently after ${plural(job.attempts, "attempt")}`, { isEstimate: true });
  }
  list.sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
  if (["ready", "waiting", "scheduled", "retrying"].includes(state)) {
    const text = state === "retrying" ? `Attempt ${job.attempts + 1} of ${job.max_attempts} is due` : "Due";
    add(job.run_at, reasons[0]?.code === "eligible" ? "Due, waiting for a worker" : text, { isNext: true });
  }
  return list.filter(({ at }) => at);
}

function Timeline({ data }) {
  const isPartial = data.job?.attempts > data.attempts.length && !data.has_history;
  return html`<${Panel} title="Timeline" hint=${isPartial && "Earlier attempts are not kept: history is off"}><ol class="timeline">
    ${events(data).map(({ at, state, text, detail, isNext, isEstimate }, index) => html`<li key=${index} data-state=${state} data-open=${isNext}>
      <span class="timeline-time" title=${at}>${isEstimate && "≈ "}${time(at)}<br /><span class="small">${ago(at)}</span></span>
      <div class="timeline-text"><div>${text}</div>${detail && html`<div class="muted small">${detail.split("\n")[0]}</div>`}</div></li>`)}</ol><//>`;
}

/** A payload or a result, which is read on its own because it may be large or secret. */
function Document({ id, kind, heading }) {
  const [revealed, setRevealed] = useState(null);
  const why = session.value?.hide_payloads ? "This dashboard hides payloads." : whyNot("view_payload");
  const isHidden = why !== null && !why.includes("unreachable");
  const { data: masked, error } = useLive(isHidden ? null : `/jobs/${id}/${kind}`, {}, { isFrozen: true });
  const data = revealed ?? masked;
  const reveal = () => post(`/jobs/${id}/${kind}/reveal`).then(setRevealed, (problem) => toast(problem.detail, "error"));
  const button = data?.is_redacted &&
    html`<${Button} kind="quiet" title="Revealing is recorded in the audit" onClick=${reveal}>Reveal masked values<//>`;
  const remark = isHidden ? why : !data ? error?.detail : data.text == null ? "None." : data.is_truncated && "Only the first part is shown.";
  return html`<${Panel} title=${heading} hint=${data && bytes(data.bytes)} actions=${button}>
    ${data?.text != null && html`<${JsonView} text=${data.text} label=${`${heading} as JSON`} />`}
    ${remark && html`<p class="muted">${remark}</p>`}<//>`;
}

function Facts({ job, traceId }) {
  const when = (at) => at && html`<${Time} at=${at} kind="both" />`;
  const trace = html`<span class="mono">${traceId}</span>`;
  const url = session.value.trace_url?.replace("{trace_id}", traceId);
  const facts = {
    Queue: job.queue && jobsLink("queue", job.queue),
    Key: job.key && html`<span class="mono">${job.key}</span> <${Copy} text=${job.key} label="Copy the key" />`,
    Attempts: `${count(job.attempts)} of ${count(job.max_attempts)}`,
    Priority: String(job.priority),
    Due: when(job.run_at),
    Created: when(job.created_at),
    Updated: when(job.updated_at),
    Worker: job.locked_by && jobsLink("worker", job.locked_by),
    Locked: when(job.locked_at),
    Flags: job.flags?.join(", "),
    Revision: job.revision != null && String(job.revision),
    Trace: traceId && (url ? html`<a href=${url} target="_blank" rel="noreferrer">${trace}</a>` : trace),
  };
  return html`<${Panel} title="Details"><dl class="facts">
    ${Object.entries(facts).map(([label, value]) => value && html`<dt>${label}</dt><dd>${value}</dd>`)}</dl><//>`;
}

/** How a job that is no longer in the queue ended. */
function Ending({ outcome, hasHistory }) {
  if (!outcome) {
    return html`<${Notice}><strong>This job is no longer in the queue: it was completed or removed.</strong>
      ${hasHistory === false && " History is off, so its outcome is not known."}<//>`;
  }
  const { state, started_at: from, finished_at: at, attempt, max_attempts: most, worker } = outcome;
  const took = from ? ` after ${age((Date.parse(at) - Date.parse(from)) / 1000)}` : "";
  return html`<${Notice} kind=${state === "succeeded" ? "good" : "error"}><strong>${ENDINGS[state]} ${ago(at)}</strong>
    ${` at ${time(at)}${took}, attempt ${attempt} of ${most}${worker ? ` on ${worker}` : ""}.`}<//>`;
}

export default function JobPage({ params: { id } }) {
  const [isGone, setGone] = useState(false);
  // Ids are never used again, so a job that has ended stays as it is.
  const { data, error, reload } = useLive(`/jobs/${encodeURIComponent(id)}`, {}, { isFrozen: isGone });
  const isMissing = error?.code === "not_found";
  const last = useRef(null);
  last.current = data?.job ?? last.current;
  useEffect(() => setGone(isMissing || Boolean(data && !data.job)), [data, isMissing]);
  const goneAt = useMemo(() => isGone && last.current && new Date(now()).toISOString(), [isGone]);

  if (!data) return html`<${Page} title=${`Job ${id}`}><${Loaded} result=${{ error, reload }} /><//>`;

  const job = last.current;
  const outcome = data.outcomes[0];
  const task = job?.task ?? outcome?.task;
  const text = job?.last_error ?? outcome?.error;
  const state = isGone ? outcome?.state : data.state;
  const past = isGone ? { ...data, job: job && { ...job, locked_at: null }, state: null } : data;
  return html`<${Page}
    title=${html`${task && jobsLink("task", task)} <span class="muted mono">#${id}</span>`}
    hint=${state && html`<${State} state=${state} />`}
    actions=${!isGone && html`<${Actions} id=${id} data=${data} />`}
  >
    ${error && !isMissing && html`<${Notice} kind="warn">${error.detail}<//>`}
    ${isGone && html`<${Ending} outcome=${outcome} hasHistory=${data.has_history} />`}
    ${goneAt && html`<p class="muted">It left the queue while this page was open, at ${time(goneAt)}.</p>`}
    ${!isGone && html`<${Why} state=${state} reasons=${data.reasons} />`}
    ${!isGone && data.progress && html`<${Progress} progress=${data.progress} />`}
    <div class=${`split ${isGone && job ? "stale-data" : ""}`} data-wide="left">
      <div class="stack">
        ${text && html`<${Panel} title="Last error"><${Code} text=${text} label="Text of the last error" copy /><//>`}
        ${!isGone && html`<${Document} key=${job.revision} id=${id} kind="payload" heading="Payload" />`}
        ${outcome?.has_result && html`<${Document} id=${id} kind="result" heading="Result" />`}
        ${isGone && html`<${Timeline} data=${past} />`}
      </div>
      <div class="stack">
        ${!isGone && html`<${Timeline} data=${past} />`}
        ${job && html`<${Facts} job=${job} traceId=${data.trace_id} />`}
      </div>
    </div>
  <//>`;
}
