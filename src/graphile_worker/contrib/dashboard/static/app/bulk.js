/** The dialog that changes jobs: values, preview, confirmation, progress, result. */
import {
  Button, Dialog, Field, Fields, Notice, State, count, del, get, html, openDialog, plural, post, readFields, session, sum, texts, tickNow,
  useLayoutEffect, useLive, useState, whyNot,
} from "./kit.js";

const FIRST_JOBS = 10;
const TYPED_ABOVE = 100;
const POLL_MS = 500;
const END = { done: "good", canceled: "warn", failed: "error" };

/**
 * Opens the dialog for jobs: those that the filter `q` matches, those with the `ids`, or those of
 * the group of errors with the `fingerprint`. With `is_sure`, it asks nothing.
 */
export const openBulk = (options) => openDialog((close) => html`<${Bulk} ...${options} close=${close} />`);

function Bulk({ action, q, ids, fingerprint, title, is_sure: isSure, onDone, close }) {
  const words = texts.value.actions[action];
  const fields = texts.value.bulk_fields[action];
  const [values, setValues] = useState({ ...Object.fromEntries(fields?.map(({ name, value }) => [name, value]) ?? []), typed: "" });
  const [{ step, error, preview, run, isFirst }, setView] = useState({ step: "form" });
  const go = (next, changes) => setView((last) => ({ ...last, error: null, step: next, ...changes }));
  const change = (more) => setValues((last) => ({ ...last, ...more }));

  async function look(message) {
    go("loading");
    try {
      const answer = await post("/bulk/preview", { action, q, ids, fingerprint, parameters: getParameters(fields, values) });
      if (isSure && answer.total) await start(answer);
      else go("preview", { preview: answer, error: message });
    } catch (problem) {
      go("form", { error: problem.detail });
    }
  }
  async function start({ token, total }, limit) {
    go("loading");
    try {
      go("running", { run: await post("/bulk", { token, limit }), isFirst: limit < total });
    } catch (problem) {
      if (problem.code === "stale_token") await look("The preview had expired. Check the numbers again.");
      else go("form", { error: problem.detail });
    }
  }
  async function follow(isCurrent) {
    let latest = run;
    while (isCurrent() && latest.state === "running") {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      latest = await get(`/bulk/${run.id}`).catch(() => latest);
      if (isCurrent()) go("running", { run: latest });
    }
    if (!isCurrent()) return;
    go("result");
    tickNow();
    onDone?.();
  }

  useLayoutEffect(() => {
    if (!fields) look();
  }, []);
  useLayoutEffect(() => {
    // Before the paint. The button with the focus may be gone, or cancel. Enter must not stop a run.
    const button = step === "running" ? "first-child" : "last-child";
    document.querySelector(`dialog[open] .dialog-body :is(input, select), dialog[open] .dialog-foot button:${button}`)?.focus();
    let isCurrent = true;
    if (step === "running") follow(() => isCurrent);
    return () => (isCurrent = false);
  }, [step]);

  const total = preview?.total ?? 0;
  const needsTyping = total > TYPED_ABOVE && session.value.environment?.level === "production";
  const obstacle = whyNot(words.permission) || preview?.obstacle;
  const isTyped = !needsTyping || Number(values.typed.replace(/[,\s]/g, "")) === total;
  const why = obstacle || (isTyped ? null : `Type ${total} first.`);
  const submit = { type: "submit", kind: words.is_dangerous ? "danger" : "primary" };
  const stop = () => del(`/bulk/${run.id}`).catch(() => {});
  /** Buttons of each step: text and properties. */
  const buttons = {
    form: [["Cancel", { onClick: close }], ["Preview", { ...submit, kind: "primary" }]],
    loading: [["Cancel", { onClick: close }]],
    preview: [
      ["Cancel", { onClick: close }],
      total > FIRST_JOBS && !preview.is_capped && [`${words.label}: ${FIRST_JOBS} first`, { onClick: () => start(preview, FIRST_JOBS) }],
      [`${words.label} ${plural(total, "job")}`, { ...submit, disabledReason: why }],
    ],
    running: [["Continue in the background", { onClick: close }], ["Stop", { kind: "danger", onClick: stop }]],
    result: [
      isFirst && run.state === "done" && ["Continue with the others", { onClick: () => look() }],
      ["Close", { kind: "primary", onClick: close }],
    ],
  }[step];
  const onSubmit = { form: () => look(), preview: () => why === null && start(preview) }[step];
  return html`<${Dialog} title=${title ?? `${words.label}${ids ? ` ${plural(ids.length, "job")}` : ""}`} onClose=${close} onSubmit=${onSubmit}
    actions=${buttons.filter(Boolean).map(([label, properties]) => html`<${Button} key=${label} ...${properties}>${label}<//>`)}>
    ${error && html`<${Notice} kind=${step === "preview" ? "warn" : "error"}>${error}<//>`}
    ${step === "form" && fields && html`<${Fields} fields=${fields} values=${values} onChange=${change} />`}
    ${step === "loading" && html`<p role="status">Loading…</p>`}
    ${step === "preview" && html`<${Preview} preview=${preview} />${obstacle && html`<p class="muted">${obstacle}</p>`}`}
    ${step === "preview" && needsTyping && html`<${Field} label=${`This is production. Type ${count(total)} to confirm`}>
      <input class="input" inputmode="numeric" autocomplete="off" value=${values.typed} onInput=${(event) => change({ typed: event.target.value })} /><//>`}
    ${(step === "running" || step === "result") && html`<${Run} key=${step} ...${{ run, preview, q, isFirst }} />`}
  <//>`;
}

/** The values of the form. A chosen time takes the place of the delay. */
function getParameters(fields = [], values) {
  const { at, ...rest } = readFields(fields, values);
  return at ? { ...rest, run_at: at } : rest;
}

const lines = (all) => all.map((text) => html`<p>${text}</p>`);
const byState = (numbers) => html`<ul class="row">
  ${texts.value.states.map(({ name: state }) => numbers[state] > 0 && html`<li><${State} state=${state} /> ${count(numbers[state])}</li>`)}</ul>`;

function Preview({ preview: { total, help, notes, by_state: numbers, sample } }) {
  return html`<p>${help}</p>
    <p>This changes <strong>${plural(total, "job")}</strong>. Matching jobs by state:</p>
    ${byState(numbers)}${lines(notes)}
    <ul class="sample">${sample.map((job) => html`<li class="clip">
      <span class="mono">${job.id} ${job.task}</span> <span class="muted">${job.error}</span></li>`)}
      ${total > sample.length && html`<li class="muted">and ${count(total - sample.length)} more</li>`}</ul>`;
}

/** A change while it runs, and what became of it. */
function Run({ run, preview, q, isFirst }) {
  const isOver = run.state !== "running";
  const { data: matching } = useLive(isOver && isFirst && q != null ? "/jobs/count" : null, { q });
  return html`<div class="stack" role="status">
    ${isOver
      ? html`<${Notice} kind=${END[run.state]}><strong>${run.sentence}</strong> ${run.error}<//>`
      : html`<progress max=${run.total || 1} value=${run.done} aria-label="Progress"></progress><p>${run.sentence}</p>`}
    ${lines(run.notes)}
    ${isOver && isFirst && html`<p>Wait until these jobs have run. Jobs that succeed leave the queue. Jobs that fail return as Retrying.</p>`}
    ${matching && html`<p>The filter matches now: <strong>${plural(matching.total, "job")}</strong>, ${count(sum(preview.by_state))} before.</p>
      ${byState(matching.by_state)}`}
  </div>`;
}
