/** Fields of forms. */
import { cloneElement } from "../../vendor/preact.js";
import { html, useRef, useState } from "../lib.js";
import { zone } from "../format.js";
import { setQuery } from "../router.js";
import { timeZone } from "../state.js";
import { Button } from "./button.js";

let fields = 0;

/** A labeled control, which is its child, with help and an error. */
export function Field({ label, help, error, children }) {
  // Ids of useId are unique in one root only, and dialogs have their own.
  const [own] = useState(() => `field-${(fields += 1)}`);
  const id = children.props.id ?? own;
  const described = `${error ? `${own}-error` : ""} ${help ? `${own}-help` : ""}`.trim();
  return html`<div class="field"><label for=${id}>${label}</label>
    ${cloneElement(children, { id, "aria-describedby": described || undefined, "aria-invalid": error ? "true" : undefined })}
    ${error && html`<p class="error" id=${`${own}-error`} role="alert">${error}</p>`}
    ${help && html`<p class="help" id=${`${own}-help`}>${help}</p>`}</div>`;
}

/** Fields that the server defines, with their `values` by name, or in a form that is read when it is sent. */
export const Fields = ({ fields, values, onChange }) => fields.map((field) => {
  const { name, label, help, value: first, options, input } = field;
  if (!isShown(field, values)) return null;
  const value = values?.[name] ?? first;
  const onInput = (event) => onChange?.({ [name]: event.target.value });
  const rest = { class: "input", name, autocomplete: "off", [values ? "value" : "defaultValue"]: value, onInput, ...input };
  return html`<${Field} key=${name} help=${typeof help === "string" ? help : help?.[value]} label=${isTime(field) ? `${label} (${zone()})` : label}>${options
    ? html`<select ...${rest}>${Object.entries(options).map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}</select>`
    : html`<input ...${rest} />`}<//>`;
});

const isTime = ({ input }) => input?.type === "datetime-local";
const isShown = ({ only }, values) => !only || (only[1] === null ? values[only[0]] : values[only[0]] === only[1]);
const toList = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
const toTime = (at) => new Date(timeZone.peek() === "utc" ? `${at}Z` : at).toISOString();

/** The values of fields that are not empty, as the API takes them: numbers, and times in RFC 3339. */
export const readFields = (fields, values) => Object.fromEntries(fields
  .filter((field) => values[field.name] && isShown(field, values))
  .map((field) => [field.name, (field.is_number ? Number : field.is_list ? toList : isTime(field) ? toTime : String)(values[field.name])]));

/** Fields, by name, that change parameters of the query string, and reset those of the `cursor`. */
export function Search({ fields, query, cursor }) {
  const submit = (event) => {
    event.preventDefault();
    setQuery({ ...Object.fromEntries(new FormData(event.target)), [cursor]: null });
  };
  return html`<form class="filter" role="search" onSubmit=${submit}>${Object.entries(fields).map(([name, label]) => html`<input class="input"
    type="search" key=${name} name=${name} aria-label=${label} placeholder=${label} defaultValue=${query[name]} />`)}
    <${Button} icon="search" type="submit">Search<//></form>`;
}

/** Where JSON is wrong: `{line, column, message}`, or null. */
export function jsonProblem(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    const [, offset = text.length] = /position (\d+)/.exec(error.message) ?? [];
    const before = text.slice(0, offset).split("\n");
    // Firefox reports lines instead of positions.
    const [, line = before.length, column = before.at(-1).length + 1] = /line (\d+) column (\d+)/.exec(error.message) ?? [];
    return { line: Number(line), column, message: error.message.replace(/^JSON\.parse: /, "").replace(/ (in JSON )?at (position|line) .*$/, "") };
  }
}

/** A text field for JSON, with line numbers. `badLine` marks the line of a mistake. */
export function JsonEditor({ badLine, ...rest }) {
  const lines = useRef(null);
  return html`<div class="editor" data-invalid=${rest["aria-invalid"]}>
    <div class="lines" aria-hidden="true" ref=${lines}>${rest.value.split("\n").map((_, index) =>
      (index + 1 === badLine ? html`<div class="bad">✕ ${badLine}</div>` : html`<div>${index + 1}</div>`))}</div>
    <textarea spellcheck=${false} autocomplete="off" autocapitalize="off" wrap="off" ...${rest}
      onScroll=${(event) => (lines.current.scrollTop = event.target.scrollTop)} />
  </div>`;
}
