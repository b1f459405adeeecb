/** Buttons and menus. */
import { html, useId, useLayoutEffect, useRef, useState } from "../lib.js";
import { Icon } from "./icon.js";
import { toast } from "./toast.js";

/**
 * A button, or a link with `href`. With a `disabledReason` it stays focusable and reports why it does
 * nothing. `label` names a button that has only an icon.
 */
export function Button({ onClick, kind, disabledReason, icon, label, href, children, class: more = "", base = "button", ...rest }) {
  const isBare = children == null;
  const isLink = href && !disabledReason;
  const reject = (event) => {
    event.preventDefault();
    event.stopPropagation();
    toast(disabledReason, "warn");
  };
  return html`<${isLink ? "a" : "button"} ...${isLink ? { href } : { type: "button" }} class=${`${base} ${isBare ? "icon-only" : ""} ${more}`}
    data-kind=${kind} aria-disabled=${disabledReason ? "true" : undefined} aria-label=${label}
    title=${disabledReason || (isBare ? label : undefined)} onClick=${disabledReason ? reject : onClick} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}${disabledReason && html`<span class="visually-hidden"> (${disabledReason})</span>`}<//>`;
}

/** Copies a text to the clipboard, which browsers have only over https and on localhost. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.", "good");
  } catch {
    toast("The browser does not allow copying here.", "warn");
  }
}

export const Copy = ({ text, label = "Copy" }) => html`<${Button} kind="quiet" icon="copy" label=${label} onClick=${() => copy(text)} />`;

/** A button that opens a list of actions, which are props of buttons. With an icon, the label is for screen readers. */
export function Menu({ label, items, icon, kind }) {
  const [isOpen, setOpen] = useState(false);
  const list = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    if (!isOpen) return undefined;
    const menu = list.current;
    const box = menu.previousElementSibling.getBoundingClientRect();
    const { width, height } = menu.getBoundingClientRect();
    const isAbove = box.bottom + height + 8 > innerHeight && box.top > height;
    menu.style.top = `${isAbove ? box.top - height - 4 : box.bottom + 4}px`;
    menu.style.left = `${Math.max(8, Math.min(box.right - width, innerWidth - width - 8))}px`;
    menu.firstElementChild.focus();
    const close = () => menu.hidePopover();
    document.addEventListener("scroll", close, true);
    return () => document.removeEventListener("scroll", close, true);
  }, [isOpen]);
  const onKeyDown = (event) => {
    if (!isOpen) return;
    event.stopPropagation();
    const all = [...list.current.children];
    const index = all.indexOf(document.activeElement);
    const steps = { ArrowDown: index + 1, ArrowUp: index - 1 + all.length, Home: 0, End: all.length - 1 };
    if (event.key === "Tab") list.current.hidePopover();
    if (!(event.key in steps)) return;
    event.preventDefault();
    all[steps[event.key] % all.length].focus();
  };
  return html`<div class="menu" onKeyDown=${onKeyDown}>
    <${Button} icon=${icon} kind=${kind} label=${icon && label} popovertarget=${id} aria-haspopup="menu" aria-expanded=${isOpen}>
      ${icon ? null : html`${label}<${Icon} name="down" />`}<//>
    <div class="menu-list" role="menu" popover="auto" id=${id} ref=${list} aria-label=${label}
      onToggle=${(event) => setOpen(event.newState === "open")}
      onClickCapture=${() => list.current.hidePopover()}>${isOpen && items.filter(Boolean).map(({ label: text, ...item }) =>
        html`<${Button} key=${text} base="menu-item" role="menuitem" tabindex="-1" ...${item}>${text}<//>`)}</div>
  </div>`;
}
