/** The filter's text field, with completion of fields, names and states. */
import { Button, Combobox, Icon, html, useLayoutEffect, useLive, useRef, useState } from "./kit.js";

const APPLY_MS = 350;

/**
 * `error` is the ApiError of a filter that cannot be read. `onApply(text, isFinal)` gets the text
 * while the user types, and with `isFinal` when they press Enter.
 */
export function FilterBox({ value, error, onApply, autoFocus }) {
  const [text, setText] = useState(value);
  const [isOpen, setOpen] = useState(false);
  const root = useRef(null);
  const timer = useRef(0);
  const applied = useRef(value);
  const { data, isCurrent } = useLive(isOpen ? "/completions" : null, { text }, { isFrozen: true });
  const options = isOpen && isCurrent ? data.options : [];
  const getInput = () => root.current.querySelector("input");

  // Not after the next paint: more may be typed by then.
  useLayoutEffect(() => {
    // The URL changed by Back, a link or a tab, not by typing here.
    if (value !== applied.current) setText(value);
    applied.current = value;
  }, [value]);
  useLayoutEffect(() => {
    if (autoFocus) getInput().focus();
    return () => clearTimeout(timer.current);
  }, []);

  function apply(next, isFinal) {
    clearTimeout(timer.current);
    applied.current = next.trim();
    onApply(applied.current, isFinal);
  }
  function type(next) {
    setText(next);
    setOpen(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => apply(next, false), APPLY_MS);
  }
  function clear() {
    setText("");
    apply("", true);
    getInput().focus();
  }
  function onKey(key) {
    if (key === "Enter") apply(text, true);
    else if (key === "Escape" && !options.length) getInput().blur();
    else if (key !== "Escape") return false;
    setOpen(false);
    return true;
  }
  const isBad = error?.code === "bad_filter";
  return html`<div>
    <div class="filter" role="search" ref=${root}>
      <${Icon} name="search" />
      <${Combobox} name="filter" label="Filter" data-filter value=${text} options=${options} onType=${type} onPick=${(option) => type(option.text)}
        onKey=${onKey} onFocus=${() => setOpen(true)} onBlur=${() => setOpen(false)}
        aria-invalid=${isBad ? "true" : undefined} aria-describedby="filter-error"
        placeholder="Filter: task:send_email error:timeout age:>10m payload.user_id:42" />
      ${text && html`<${Button} kind="quiet" icon="close" label="Clear the filter" onClick=${clear} />`}
    </div>
    <div id="filter-error" role="alert">${isBad && html`<p class="error">${error.detail}</p>${pointAt(text, error.problem)}`}</div>
  </div>`;
}

/** The filter with the part marked that cannot be read. */
function pointAt(text, { position, length }) {
  if (position == null || !text) return null;
  const end = position + Math.max(1, length ?? 1);
  return html`<p class="mono small pointed">${text.slice(0, position)}<mark>${text.slice(position, end) || " "}</mark>${text.slice(end)}</p>`;
}
