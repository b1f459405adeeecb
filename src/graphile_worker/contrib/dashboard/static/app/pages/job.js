/** A job: its state, why it does not run, its attempts, payload and error, and what to do. */
import {
  Button, Changes, JsonView, Loaded, Menu, Notice, Page, Panel, Part, Rich, State, Time, ago, copy, html, navigate, now, post, session,
  time, toast, tryAct, useEffect, useLive, useMemo, useRef, useShortcuts, useState,
} from "../kit.js";

const copyItem = (label, text) => ({ label, onClick: () => copy(text) });

function Actions({ id, job, actions }) {
  const retry = actions.find(({ bulk }) => bulk?.action === "retry");
  useShortcuts("Job", [
    ["r", "Retry", () => tryAct(retry)],
    ["Escape", "Back", () => (history.length > 1 ? history.back() : navigate("jobs"))],
  ]);
  return html`<${Changes} isTitle changes=${actions} />
    <${Menu} label="Copy" items=${[
      copyItem("Link", location.href),
      copyItem("JSON", JSON.stringify(job, null, 2)),
      copyItem("SQL", `select * from ${session.value.schema}.jobs where id = ${id};`),
    ]} />`;
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
  const isHidden = session.value.obstacles.view_payload;
  const { data: masked, error } = useLive(isHidden ? null : `/jobs/${id}/${kind}`, {}, { isFrozen: true });
  const data = revealed ?? masked;
  const reveal = () => post(`/jobs/${id}/${kind}/reveal`).then(setRevealed, (problem) => toast(problem.detail, "error"));
  const button = data?.is_redacted &&
    html`<${Button} kind="quiet" title="Revealing is recorded in the audit" onClick=${reveal}>Reveal masked values<//>`;
  const remark = isHidden || (!data ? error?.detail : data.text == null ? "None." : data.is_truncated && "Only the first part is shown.");
  return html`<${Panel} title=${heading} hint=${data?.size} actions=${button}>
    ${data?.text != null && html`<${JsonView} text=${data.text} label=${`${heading} as JSON`} />`}
    ${remark && html`<p class="muted">${remark}</p>`}<//>`;
}

export default function JobPage({ id }) {
  const [isGone, setGone] = useState(false);
  // Ids are never used again, so a job that has ended stays as it is.
  const { data, error, reload } = useLive(`/jobs/${encodeURIComponent(id)}`, {}, { isFrozen: isGone });
  const isMissing = error?.code === "not_found";
  const last = useRef(null);
  if (data?.job) last.current = data;
  useEffect(() => setGone(isMissing || Boolean(data && !data.job)), [data, isMissing]);
  const goneAt = useMemo(() => isGone && last.current && new Date(now()).toISOString(), [isGone]);

  if (!data) return html`<${Page} title=${`Job ${id}`}><${Loaded} result=${{ error, reload }} /><//>`;

  const { job, facts } = last.current ?? {};
  const outcome = data.outcomes[0];
  const text = job?.last_error ?? outcome?.error;
  const state = isGone ? outcome?.state : data.state;
  const isPartial = job?.attempts > data.attempts.length && !data.has_history;
  const timeline = html`<${Timeline} events=${data.timeline.filter((event) => !isGone || !event.is_current)}
    hint=${isPartial && "Earlier attempts are not kept: history is off"} />`;
  return html`<${Page}
    title=${html`<${Rich} text=${(job ? last.current : data).view.title} />`}
    hint=${state && html`<${State} state=${state} />`}
    actions=${!isGone && html`<${Actions} id=${id} job=${data.job} actions=${data.view.actions} />`}
  >
    ${error && !isMissing && html`<${Notice} kind="warn">${error.detail}<//>`}
    ${isGone && html`<${Notice} kind=${{ succeeded: "good", failed: "error" }[state]}><strong>${data.ending ?? error?.detail}</strong>
      ${outcome && html` <${Time} at=${outcome.finished_at} kind="both" />`}<//>`}
    ${goneAt && html`<p class="muted">It left the queue while this page was open, at ${time(goneAt)}.</p>`}
    ${!isGone && data.reasons.length > 0 && html`<${Why} ...${data} />`}
    ${!isGone && data.progress && html`<${Progress} progress=${data.progress} />`}
    <div class=${`split ${isGone && job ? "stale-data" : ""}`} data-wide="left">
      <div class="stack">
        ${text && html`<${Part} title="Last error" code=${text} />`}
        ${!isGone && html`<${Document} key=${job.revision} id=${id} kind="payload" heading="Payload" />`}
        ${outcome?.has_result && html`<${Document} id=${id} kind="result" heading="Result" />`}
        ${isGone && timeline}
      </div>
      <div class="stack">
        ${!isGone && timeline}
        ${job && html`<${Part} title="Details" facts=${facts} />`}
      </div>
    </div>
  <//>`;
}
