/** Text of programs, errors and JSON, shown as text. */
import { html, useState } from "../lib.js";
import { Button, Copy } from "./button.js";

const MAX_COLORED = 4000;
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)|([{}[\],])|\s+/gy;

export const Code = ({ text, language = "Text", copy, label, tools, children = text }) => html`<div class="code">
  <pre tabindex="0" role=${label ? "region" : "group"} aria-label=${label ?? language}><code>${children}</code></pre>
  ${copy && html`<div class="tools">${tools}<${Copy} text=${text} /></div>`}</div>`;

/**
 * JSON with lines and indentation, as a list of [class, text], or null if the text is not JSON.
 * Numbers stay as they are written: JavaScript would round those beyond 2^53.
 */
export function pretty(text) {
  const parts = [];
  let depth = 0;
  let last = "";
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const match = TOKEN.exec(text);
    if (!match) return null;
    const [, string, colon, number, word, mark] = match;
    const value = string ?? number ?? word ?? mark;
    if (!value) continue;
    const isEnd = "}]".includes(value);
    if (isEnd) depth -= 1;
    if (isEnd ? !"{[".includes(last) : last && "{[,".includes(last)) parts.push(["", `\n${"  ".repeat(depth)}`]);
    parts.push([colon ? "json-key" : string ? "json-string" : number ? "json-number" : word ? "json-word" : "", value]);
    if (colon) parts.push(["", ": "]);
    if ("{[".includes(value)) depth += 1;
    last = mark ?? "value";
  }
  return parts;
}

/** JSON, formatted, with a switch to the text as it is stored. */
export function JsonView({ text, label }) {
  const [isRaw, setRaw] = useState(false);
  const parts = (!isRaw && pretty(text)) || [["", text]];
  return html`<${Code} text=${text} label=${label} copy
    tools=${html`<${Button} kind="quiet" aria-pressed=${isRaw} onClick=${() => setRaw(!isRaw)}>Raw<//>`}>
    ${parts.map(([kind, part], index) => (kind && index < MAX_COLORED ? html`<span class=${kind}>${part}</span>` : part))}<//>`;
}
