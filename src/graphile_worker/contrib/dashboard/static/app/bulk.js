/** The dialog that changes jobs: values, preview, confirmation, progress, result. */
import { html, render, useEffect, useState } from "./lib.js";
import { del, get, post } from "./api.js";
import { count, plural, sum, zone } from "./format.js";
import { tickNow, useLive } from "./live.js";
import { now, session, texts, timeZone, whyNot } from "./state.js";
import { Button, Dialog, Field, Notice, State } from "./ui/index.js";

const FIRST_JOBS = 10;
const TYPED_ABOVE = 100;
const POLL_MS = 500;
const DELAYS = { 0: "Now", 600: "In 10 minutes", 3600: "In 1 hour", 86400: "In 1 day", at: "At a time", "": "Do not change" };
const END = { done: "good", canceled: "warn", failed: "error" };

/**
 * Opens the dialog for jobs: those that the filter `q` matches, those with the `ids`, or those of
 * the group of errors with the `fingerprint`. With `isSure`, it asks nothing.
 */
export function openBulk(options) {
  const host = document.body.appendChild(document.createElement("div"));
  const close = () => {
    render(null, host);
    host.remove();
  };
  render(html`<${Bulk} ...${options} host=${host} close=${close} />`, host);
}

function Bulk({ action, q, ids, fingerprint, title, isSure, onDone, host, close }) {
  const words = texts.value.actions[action];
  const hasForm = action === "reschedule" || action === "fail";
  const [values, setValues] = useState({ delay: "0", at: "", priority: "", reason: "", typed: "" });
  const [{ step, error, preview, run, isFirst }, setView] = useState({ step: "form" });
  const go = (next, changes) => setView((last) => ({ ...last, error: null, step: next, ...changes }));
  const set = (name) => ({ class: "input", value: values[name], onInput: (event) => setValues({ ...values, [name]: event.target.value }) });

  async function look(message) {
    go("loading");
    try {
      const answer = await post("/bulk/preview", { action, q, ids, fingerprint, parameters: getParameters(action, values) });
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

  useEffect(() => {
    if (!hasForm) look();
  }, []);
  useEffect(() => {
    // The button that had the focus may be gone. Enter must not stop a run.
    const button = step === "running" ? "first-child" : "last-child";
    host.querySelector(`.dialog-body :is(input, select), .dialog-foot button:${button}`)?.focus();
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
  /** The buttons of each step: their text and properties. */
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
    ${step === "form" && action === "fail" && html`<${Field} label="Reason" help="The jobs show it as their error.">
      <input required maxlength="500" ...${set("reason")} /><//>`}
    ${step === "form" && action === "reschedule" && html`<${Schedule} set=${set} hasTime=${values.delay === "at"} />`}
    ${step === "loading" && html`<p role="status">Loading…</p>`}
    ${step === "preview" && html`<${Preview} preview=${preview} />${obstacle && html`<p class="muted">${obstacle}</p>`}`}
    ${step === "preview" && needsTyping && html`<${Field} label=${`This is production. Type ${count(total)} to confirm`}>
      <input inputmode="numeric" autocomplete="off" ...${set("typed")} /><//>`}
    ${(step === "running" || step === "result") && html`<${Run} key=${step} ...${{ run, preview, q, isFirst }} />`}
  <//>`;
}

function getParameters(action, { delay, at, priority, reason }) {
  if (action === "fail") return { reason };
  if (action !== "reschedule") return {};
  const time = delay === "at" ? (timeZone.value === "utc" ? `${at}Z` : at) : now() + 1000 * Number(delay);
  // JSON leaves out what is undefined.
  return { run_at: delay === "" ? undefined : new Date(time).toISOString(), priority: priority === "" ? undefined : Number(priority) };
}

function Schedule({ set, hasTime }) {
  const options = Object.entries(DELAYS).map(([value, label]) => html`<option value=${value}>${label}</option>`);
  return html`<${Field} label="Run"><select ...${set("delay")}>${options}</select><//>
    ${hasTime && html`<${Field} label=${`Time (${zone()})`}><input type="datetime-local" required ...${set("at")} /><//>`}
    <${Field} label="Priority" help="Smaller numbers run first. Leave empty to keep the priority.">
      <input type="number" min="-32768" max="32767" ...${set("priority")} /><//>`;
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
