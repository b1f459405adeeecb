/** Dialogs, and the question before an action. */
import { html, render, useLayoutEffect, useRef, useState } from "../lib.js";
import { Button } from "./button.js";
import { Field, Fields, readFields } from "./form.js";

/**
 * A modal dialog. Escape closes it, and the focus returns to where it was. With `onSubmit`, Enter
 * in a field and a button of type "submit" submit.
 */
export function Dialog({ title, onClose, children, actions, isWide, onSubmit }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    dialog.querySelector(".dialog-body :is(input, select, textarea), .dialog-foot :last-child")?.focus();
    return () => dialog.close();
  }, []);
  const handle = (action, isOwn = () => true) => (event) => {
    if (!isOwn(event)) return;
    event.preventDefault();
    action(event);
  };
  const close = handle(onClose, (event) => event.target === element.current);
  return html`<dialog class="dialog" ref=${element} data-wide=${isWide} aria-label=${title} onCancel=${close} onPointerDown=${close}>
    <div class="dialog-head"><h2>${title}</h2><${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} /></div>
    <${onSubmit ? "form" : "div"} class="dialog-form" onSubmit=${onSubmit && handle(onSubmit)}>
      <div class="dialog-body">${children}</div>${actions && html`<div class="dialog-foot">${actions}</div>`}<//>
  </dialog>`;
}

/**
 * Asks before an action. With `typed`, the user must type that text. Resolves to the values of the
 * `fields` by name if the user confirms, otherwise to null.
 */
export function confirmAction(options) {
  return new Promise((resolve) => openDialog((close) => html`<${Question} ...${options} end=${(answer) => {
    close();
    resolve(answer);
  }} />`));
}

/** Shows a dialog that `build` makes with the function that removes it, beside the page. */
export function openDialog(build) {
  const host = document.body.appendChild(document.createElement("div"));
  render(build(() => {
    render(null, host);
    host.remove();
  }), host);
}

function Question({ title, text, fields, is_dangerous: isDangerous, typed, action, end }) {
  const [value, setValue] = useState("");
  const isTyped = !typed || value.trim() === typed;
  const submit = (event) => isTyped && end(readFields(fields ?? [], Object.fromEntries(new FormData(event.target))));
  const cancel = () => end(null);
  return html`<${Dialog} title=${title} onClose=${cancel} onSubmit=${submit} actions=${html`
    <${Button} onClick=${cancel}>Cancel<//>
    <${Button} kind=${isDangerous ? "danger" : "primary"} type="submit" disabledReason=${isTyped ? null : `Type ${typed} first.`}>${action}<//>`}>
    <p>${text}</p>${fields && html`<${Fields} fields=${fields} />`}
    ${typed && html`<${Field} label=${html`Type <code>${typed}</code> to confirm`}>
      <input class="input mono" value=${value} onInput=${(event) => setValue(event.target.value)} autocomplete="off" spellcheck=${false} /><//>`}
  <//>`;
}
