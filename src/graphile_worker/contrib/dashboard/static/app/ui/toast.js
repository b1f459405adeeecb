/** Short messages about the result of the user's own actions. */
import { html, render } from "../lib.js";

const SECONDS = { good: 5, warn: 8, error: 12 };
let messages = [];
let host = null;

function draw(next) {
  messages = next;
  if (!host) {
    host = document.body.appendChild(document.createElement("div"));
    Object.assign(host, { className: "toasts", role: "status", popover: "manual" });
  }
  render(messages.map((message) => html`<div class="toast" key=${message.id} data-kind=${message.kind}><span>${message.text}</span>
    <button type="button" class="button icon-only" data-kind="quiet" aria-label="Dismiss"
      onClick=${() => dismiss(message)}>✕</button></div>`), host);
  // Shown again, a message is above a dialog that opened after the last one.
  host.togglePopover(false);
  host.togglePopover(messages.length > 0);
}

const dismiss = (message) => draw(messages.filter((each) => each !== message));

/** Shows a message of a kind ("good", "warn", "error"). Screen readers announce it. */
export function toast(text, kind) {
  const message = { text, kind, id: Math.random() };
  draw([...messages.filter((each) => each.text !== text).slice(-2), message]);
  setTimeout(() => dismiss(message), 1000 * SECONDS[kind]);
}
