/** A job: its state, why it does not run, its attempts, payload and error, and what to do. */
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { post } from "../api.js";
import { openBulk } from "../bulk.js";
import { ago, bytes, count, time } from "../format.js";
import { useShortcuts } from "../keyboard.js";
import { useLive } from "../live.js";
import { jobsPath, link, navigate, quote } from "../router.js";
import { now, session, texts, whyNot } from "../state.js";
import { Button, Code, Copy, Facts, JsonView, Loaded, Menu, Notice, Page, Panel, State, Time, copy, toast } from "../ui/index.js";

export const title = "Job";

const jobsLink = (field, value) => html`<a class="mono" href=${link(jobsPath(`${field}:${quote(value)}`))}>${value}</a>`;

const copyItem = (label, text) => ({ label, onClick: () => copy(text) });

function Actions({ id, data: { job, state, actions } }) {
  const isProduction = session.value?.environment?.level === "production";
  const describe = (action) => {
    const { label, permission } = texts.value.actions[action];
    const isSure = action === "retry" && !isProduction;
    return {
      label: `${label}${isSure ? "" : "…"}`,
      disabledReason: whyNot(permission) || actions[action],
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

const Why = ({ why, reasons }) => html`<${Panel} title=${why}><div class="stack">
  ${reasons.map(({ sentence }, index) => html`<p class=${index ? "wrap" : "strong wrap"}>${sentence}</p>`)}</div><//>`;

function Progress({ progress: { fraction, message, updated_at: at } }) {
  const percent = fraction == null ? null : `${Math.round(fraction * 100)} %`;
  return html`<${Panel} title="Progress" hint=${html`<${Time} at=${at} />`}>
    ${percent && html`<progress max="1" value=${fraction} aria-label="Progress"></progress>`}
    <p>${[percent, message].filter(Boolean).join(": ")}</p><//>`;
}

function Timeline({ events, hint }) {
  return html`<${Panel} title="Timeline" hint=${hint}><ol class="timeline">
    ${events.map(({ at, state, text, detail, is_next: isNext, is_estimate: isEstimate }) => html`<li key=${text} data-state=${state} data-open=${isNext || undefined}>
      <span class="timeline-time" title=${at}>${isEstimate && "≈ "}${time(at)}<br /><span class="small">${ago(at)}</span></span>
      <div class="timeline-text"><div>${text}</div>${detail && html`<div class="muted small">${detail}</div>`}</div></li>`)}</ol><//>`;
}

/** A payload or a result, which is read on its own because it may be large or secret. */
function Document({ id, kind, heading }) {
  const [revealed, setRevealed] = useState(null);
  const why = session.value?.hide_payloads ? "This dashboard hides payloads." : whyNot("view_payload");
  const isHidden = session.value?.hide_payloads || session.value.obstacles.view_payload;
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

function Details({ job, traceId }) {
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
  return html`<${Panel} title="Details"><${Facts} facts=${facts} /><//>`;
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
  const isPartial = job?.attempts > data.attempts.length && !data.has_history;
  const timeline = html`<${Timeline} events=${data.timeline.filter((event) => !isGone || !event.is_current)}
    hint=${isPartial && "Earlier attempts are not kept: history is off"} />`;
  return html`<${Page}
    title=${html`${task && jobsLink("task", task)} <span class="muted mono">#${id}</span>`}
    hint=${state && html`<${State} state=${state} />`}
    actions=${!isGone && html`<${Actions} id=${id} data=${data} />`}
  >
    ${error && !isMissing && html`<${Notice} kind="warn">${error.detail}<//>`}
    ${isGone && html`<${Notice} kind=${{ succeeded: "good", failed: "error" }[state]}><strong>${data.ending ?? error?.detail}</strong>
      ${outcome && html` <${Time} at=${outcome.finished_at} kind="both" />`}<//>`}
    ${goneAt && html`<p class="muted">It left the queue while this page was open, at ${time(goneAt)}.</p>`}
    ${!isGone && data.reasons.length > 0 && html`<${Why} ...${data} />`}
    ${!isGone && data.progress && html`<${Progress} progress=${data.progress} />`}
    <div class=${`split ${isGone && job ? "stale-data" : ""}`} data-wide="left">
      <div class="stack">
        ${text && html`<${Panel} title="Last error"><${Code} text=${text} label="Text of the last error" copy /><//>`}
        ${!isGone && html`<${Document} key=${job.revision} id=${id} kind="payload" heading="Payload" />`}
        ${outcome?.has_result && html`<${Document} id=${id} kind="result" heading="Result" />`}
        ${isGone && timeline}
      </div>
      <div class="stack">
        ${!isGone && timeline}
        ${job && html`<${Details} job=${job} traceId=${data.trace_id} />`}
      </div>
    </div>
  <//>`;
}
