/** A text field with a list of options. */
import { html, useLayoutEffect, useState } from "../lib.js";

/**
 * Options are `{text, label, help}`. The arrows choose one, from the `first` on, and Enter picks it.
 * `onKey(key)` gets the other keys, and returns whether it used one.
 */
export function Combobox({ name, label, value, options, first = -1, onType, onPick, onKey = () => false, ...rest }) {
  const [chosen, setChosen] = useState(first);
  useLayoutEffect(() => setChosen(first), [value]);
  const onKeyDown = (event) => {
    const { key } = event;
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step && options.length) setChosen((chosen + step + options.length) % options.length);
    else if ((key === "Enter" || key === "Tab") && options[chosen]) onPick(options[chosen]);
    else if (!onKey(key)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<input class="input mono" type="text" role="combobox" aria-label=${label} aria-autocomplete="list" aria-expanded=${options.length > 0}
      aria-controls=${`${name}-options`} aria-activedescendant=${options[chosen] ? `${name}-${chosen}` : undefined}
      autocomplete="off" autocapitalize="off" spellcheck=${false} value=${value} onInput=${(event) => onType(event.target.value)}
      onKeyDown=${onKeyDown} ...${rest} />
    ${options.length > 0 && html`<ul class="completions" id=${`${name}-options`} role="listbox" aria-label=${`Options of ${label}`}>
      ${options.map((option, index) => html`<li key=${option.text} id=${`${name}-${index}`} class="completion" role="option"
        aria-selected=${index === chosen} onPointerDown=${(event) => (event.preventDefault(), onPick(option))}>
        <span class="mono">${option.label}</span><span class="muted">${option.help}</span></li>`)}</ul>`}`;
}
