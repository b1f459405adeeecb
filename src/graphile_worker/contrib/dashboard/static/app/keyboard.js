/** Keyboard shortcuts: keys and key sequences, and the list that the help dialog shows. */
import { signal, useLayoutEffect, useRef } from "./lib.js";
import { shortcuts } from "./state.js";

const SEQUENCE_MS = 1200;
const TYPING = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]";

/** Groups of shortcuts, the latest last: `{title, items: [[keys, help, run]]}`. */
export const shortcutGroups = signal([]);

let prefix = "";
let prefixTimer = 0;

export function registerShortcuts(title, items) {
  const group = { title, items };
  shortcutGroups.value = [...shortcutGroups.peek(), group];
  return group;
}

/** Registers shortcuts while a component is mounted. */
export function useShortcuts(title, items) {
  const group = useRef(null);
  if (group.current) group.current.items = items;
  // Before the page is painted: whoever sees a job can use its keys.
  useLayoutEffect(() => {
    group.current = registerShortcuts(title, items);
    return () => (shortcutGroups.value = shortcutGroups.peek().filter((each) => each !== group.current));
  }, []);
}

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
  const isControl = event.ctrlKey || event.metaKey;
  if (event.altKey || (!isControl && target.closest?.(TYPING))) return;
  if (shortcuts.value === "off" && !isControl && key !== "Escape" && key !== "Enter") return;
  // Enter activates links and buttons.
  if (key === "Enter" && target.closest?.("a, button, summary, input")) return;
  const keys = prefix + (isControl ? "Ctrl+" : "") + key;
  prefix = "";
  clearTimeout(prefixTimer);
  const items = shortcutGroups.peek().toReversed().flatMap((group) => group.items);
  const item = items.find(([each]) => each.split(", ").includes(keys));
  if (item) {
    event.preventDefault();
    item[2]();
  } else if (keys === "g") {
    prefix = "g ";
    prefixTimer = setTimeout(() => (prefix = ""), SEQUENCE_MS);
  }
});
