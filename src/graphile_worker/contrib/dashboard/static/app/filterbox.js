/** The filter's text field, with completion of fields, names and states. */
import { html, useEffect, useRef, useState } from "./lib.js";
import { get } from "./api.js";
import { quote } from "./router.js";
import { Button, Icon } from "./ui/index.js";

const MAX_OPTIONS = 20;
const APPLY_MS = 350;

/** Completions of the term at the end of a text: `{text, label, help}`. */
function complete(text, { fields, tasks, queues, workers, states }) {
  const term = /(?:^|\s)-?(?:([^\s":]+):(?:(?:"(?:[^"\\]|\\.)*"|[^\s"])*,)?)?("(?:[^"\\]|\\.)*|[^\s"]*)$/.exec(text);
  if (!term) return [];
  const [, field, typed] = term;
  const before = text.slice(0, text.length - typed.length);
  const wanted = typed.replace(/^"/, "").toLowerCase();
  const matches = (name) => name.toLowerCase().includes(wanted);
  if (!field) {
    const named = fields.filter(({ name }) => name.startsWith(wanted)).map(({ name, help }) => {
      const label = name === "payload" ? "payload." : `${name}:`;
      return { text: before + label, label, help };
    });
    const found = wanted.length > 1 ? tasks.filter(matches) : [];
    return [...named, ...found.map((name) => ({ text: `${before}task:${quote(name)} `, label: name, help: "task" }))].slice(0, MAX_OPTIONS);
  }
  const known = { task: tasks, queue: queues, worker: workers, state: states }[field] ?? [];
  const values = new Set([...known, ...(fields.find(({ name }) => name === field)?.values ?? [])]);
  return [...values].filter((value) => matches(value) && value !== typed).slice(0, MAX_OPTIONS)
    .map((value) => ({ text: `${before}${quote(value)} `, label: value }));
}

/**
 * `error` is the ApiError of a filter that cannot be read. `onApply(text, isFinal)` gets the text
 * while the user types, and with `isFinal` when they press Enter.
 */
export function FilterBox({ value, error, onApply, autoFocus }) {
  const [text, setText] = useState(value);
  const [isOpen, setOpen] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const [names, setNames] = useState(null);
  const input = useRef(null);
  const timer = useRef(0);
  const applied = useRef(value);

  useEffect(() => {
    // The URL changed by Back, a link or a tab, not by typing here.
    if (value !== applied.current) setText(value);
    applied.current = value;
  }, [value]);
  useEffect(() => {
    if (autoFocus) input.current.focus();
    return () => clearTimeout(timer.current);
  }, []);

  const options = isOpen && names ? complete(text, names) : [];
  function apply(next, isFinal) {
    clearTimeout(timer.current);
    applied.current = next.trim();
    onApply(applied.current, isFinal);
  }
  function type(next) {
    setText(next);
    setChosen(-1);
    setOpen(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => apply(next, false), APPLY_MS);
  }
  function open() {
    setOpen(true);
    if (!names) get("/completions").then(setNames, () => {});
  }
  function clear() {
    setText("");
    apply("", true);
    input.current.focus();
  }
  function onKeyDown(event) {
    const { key } = event;
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step && options.length) setChosen((chosen + step + options.length) % options.length);
    else if ((key === "Enter" || key === "Tab") && options[chosen]) type(options[chosen].text);
    else if (key === "Enter") {
      setOpen(false);
      apply(text, true);
    } else if (key === "Escape" && options.length) setOpen(false);
    else if (key === "Escape") input.current.blur();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  const isBad = error?.code === "bad_filter";
  return html`<div>
    <div class="filter" role="search">
      <${Icon} name="search" />
      <input ref=${input} class="input mono" data-filter type="text" role="combobox" aria-label="Filter" aria-autocomplete="list"
        aria-expanded=${options.length > 0} aria-controls="filter-options" aria-activedescendant=${chosen < 0 ? undefined : `filter-option-${chosen}`}
        aria-invalid=${isBad ? "true" : undefined} aria-describedby="filter-error" autocomplete="off" autocapitalize="off" spellcheck=${false}
        placeholder="Filter: task:send_email error:timeout age:>10m payload.user_id:42"
        value=${text} onFocus=${open} onBlur=${() => setOpen(false)} onInput=${(event) => type(event.target.value)} onKeyDown=${onKeyDown} />
      ${text && html`<${Button} kind="quiet" icon="close" label="Clear the filter" onClick=${clear} />`}
      ${options.length > 0 && html`<ul class="completions" id="filter-options" role="listbox" aria-label="Completions">
        ${options.map(({ text: completed, label, help }, index) => html`<li key=${completed} id=${`filter-option-${index}`} class="completion"
          role="option" aria-selected=${index === chosen} onPointerDown=${(event) => (event.preventDefault(), type(completed))}>
          <span class="mono">${label}</span><span class="muted">${help}</span></li>`)}</ul>`}
    </div>
    <div id="filter-error" role="alert">
      ${isBad && html`<p class="error">${error.detail}</p>${pointAt(text, error.problem)}`}
    </div>
  </div>`;
}

/** The filter with the part marked that cannot be read. */
function pointAt(text, { position, length }) {
  if (position == null || !text) return null;
  const end = position + Math.max(1, length ?? 1);
  return html`<p class="mono small pointed">${text.slice(0, position)}<mark>${text.slice(position, end) || " "}</mark>${text.slice(end)}</p>`;
}
