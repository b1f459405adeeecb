/** Changes that a page asks the server for. */
import { html } from "../lib.js";
import { post } from "../api.js";
import { tickNow } from "../live.js";
import { texts, whyNot } from "../state.js";
import { Button } from "./button.js";
import { confirmAction } from "./dialog.js";
import { Field } from "./form.js";
import { toast } from "./toast.js";

/** Sends a change, reports its result and refreshes the page. With a `question`, it asks first. */
export async function act(path, body, question) {
  if (question && !(await confirmAction(question))) return;
  try {
    toast((await post(path, body)).sentence, "good");
    tickNow();
  } catch (error) {
    toast(error.detail, "error");
  }
}

const DURATIONS = { "": "Until you resume it", 600: "10 minutes", 3600: "1 hour", 14400: "4 hours", 86400: "1 day" };

/** Pauses or resumes a queue or a task, by `kind`. */
export function PauseButton({ kind, name, paused, isQuiet }) {
  const path = `/${kind}s/${encodeURIComponent(name)}`;
  const pause = async () => {
    const values = await confirmAction({ title: `Pause the ${kind} “${name}”?`, text: texts.value.pause[kind], action: `Pause the ${kind}`, fields: html`
      <${Field} label="For"><select class="input" name="seconds">
        ${Object.entries(DURATIONS).map(([value, label]) => html`<option value=${value} selected=${!value}>${label}</option>`)}</select><//>
      <${Field} label="Reason (optional)"><input class="input" name="reason" maxlength="200" /><//>` });
    if (values) await act(`${path}/pause`, { seconds: Number(values.seconds) || undefined, reason: values.reason });
  };
  return html`<${Button} kind=${isQuiet && !paused ? "quiet" : undefined} icon=${paused ? "running" : "paused"} disabledReason=${whyNot("pause")}
    onClick=${paused ? () => act(`${path}/resume`) : pause}>${paused ? "Resume" : "Pause"}<//>`;
}
