/** The page that the URL names. All URLs are relative to the document's base. */
import { signal } from "./lib.js";

const BASE = new URL(document.baseURI).pathname;

/** Reads a path: the page, and the part after it, which names one of its rows. */
function match(path) {
  const [, page, , id] = /^([^/]*)(\/([^/]+))?\/?$/.exec(path) ?? [null, "missing"];
  try {
    return { page, id: id && decodeURIComponent(id) };
  } catch {
    // The escapes are not valid.
    return { page: "missing" };
  }
}

const read = () => ({ ...match(location.pathname.slice(BASE.length)), query: Object.fromEntries(new URLSearchParams(location.search)) });

export const route = signal(read());

/** The href of a path, for example `jobs?q=state:failed`. */
export const link = (path) => BASE + path.replace(/^\//, "");

/** A query string, with its question mark, without empty values. */
export function queryString(query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value != null && value !== "")).toString();
  return text && `?${text}`;
}

/** The path of the jobs that a filter matches. */
export const jobsPath = (filter) => `jobs${queryString({ q: filter })}`;

/** A value of a filter, in quotes where it needs them. */
export const quote = (value) => (/[\s,"\\*]/.test(value) || value === "none" ? `"${value.replace(/(["\\*])/g, "\\$1")}"` : value);

function go(href, isPush) {
  if (href === location.pathname + location.search) return;
  history[isPush ? "pushState" : "replaceState"](null, "", href);
  route.value = read();
}

/** Opens a path as a new entry of the history, or in place of the current one. */
export function navigate(path, { replace = false } = {}) {
  const before = route.peek().page;
  go(link(path), !replace);
  if (before !== route.peek().page || !replace) window.scrollTo(0, 0);
}

/** Changes parameters of the query string. Null removes one. */
export function setQuery(changes, { push = false } = {}) {
  go(location.pathname + queryString({ ...route.peek().query, ...changes }), push);
}

window.addEventListener("popstate", () => (route.value = read()));

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  const isPlain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  if (!anchor || !isPlain || event.defaultPrevented || anchor.target || anchor.download) return;
  const url = new URL(anchor.href);
  const path = url.pathname.slice(BASE.length);
  if (url.origin !== location.origin || !url.pathname.startsWith(BASE) || /^(static|api)\//.test(path)) return;
  event.preventDefault();
  navigate(path + url.search);
});
