/** Changes that a page asks the server for. */
import { html } from "../lib.js";
import { post } from "../api.js";
import { sentence } from "../format.js";
import { tickNow } from "../live.js";
import { whyNot } from "../state.js";
import { Button } from "./button.js";
import { confirmAction } from "./dialog.js";
import { Field } from "./form.js";
import { toast } from "./toast.js";

/** Sends a change, reports its result, which `done(answer)` words, and refreshes the page. */
export async function act(path, body, done) {
  try {
    toast(done(await post(path, body)), "good");
    tickNow();
  } catch (error) {
    toast(sentence(error.detail), "error");
  }
}

const DURATIONS = { "": "Until you resume it", 600: "10 minutes", 3600: "1 hour", 14400: "4 hours", 86400: "1 day" };
const SCOPES = {
  queue: "Workers of all runtimes stop claiming jobs of this queue within 6 s. A job that is running ends first.",
  task: "Python workers stop claiming jobs of this task within 6 s. Graphile Worker for Node and for Rust do not obey this pause.",
};

/** Pauses or resumes a queue or a task, by `kind`. */
export function PauseButton({ kind, name, paused, isQuiet }) {
  const change = (verb, body) =>
    act(`/${kind}s/${encodeURIComponent(name)}/${verb}`, body, ({ warnings = [] }) =>
      [`The ${kind} “${name}” is ${verb === "pause" ? "paused" : "resumed"}.`, ...warnings.map(sentence)].join(" "));
  const pause = async () => {
    const values = await confirmAction({ title: `Pause the ${kind} “${name}”?`, text: SCOPES[kind], action: `Pause the ${kind}`, fields: html`
      <${Field} label="For"><select class="input" name="seconds">
        ${Object.entries(DURATIONS).map(([value, label]) => html`<option value=${value} selected=${!value}>${label}</option>`)}</select><//>
      <${Field} label="Reason (optional)"><input class="input" name="reason" maxlength="200" /><//>` });
    if (values) await change("pause", { seconds: Number(values.seconds) || undefined, reason: values.reason || undefined });
  };
  return html`<${Button} kind=${isQuiet && !paused ? "quiet" : undefined} icon=${paused ? "running" : "paused"} disabledReason=${whyNot("pause")}
    onClick=${paused ? () => change("resume") : pause}>${paused ? "Resume" : "Pause"}<//>`;
}
