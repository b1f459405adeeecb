/** Icons of 16 × 16 in the color of the text beside them. */
import { html } from "../lib.js";

const DOT = "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z";
const RING = "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z";

const PATHS = {
  ready: DOT,
  running: "M5.5 4v8l6.5-4z",
  waiting: "M6.8 9.2 9.2 6.8M7 4.9l1.6-1.6a2.9 2.9 0 0 1 4.1 4.1L11.1 9M9 11.1l-1.6 1.6a2.9 2.9 0 0 1-4.1-4.1L4.9 7",
  scheduled: `${RING}M8 4.8V8l2.2 1.6`,
  retrying: "M13 8a5 5 0 1 1-1.5-3.5M13 2.5v3h-3",
  failed: "M4 4l8 8M12 4l-8 8",
  stale: "M8 2.5 14 13H2zM8 6.6v3M8 11.4v.1",
  succeeded: "M3.5 8.5l3 3 6-7",
  paused: "M5.5 3.5v9M10.5 3.5v9",
  free: RING,
  unknown: `${RING}M6.3 6.4c.1-2 3.4-2 3.4-.1 0 1.4-1.7 1.4-1.7 2.7M8 11.2v.1`,
  overview: "M2.5 2.5h4.5v5h-4.5zM9 2.5h4.5v3H9zM9 7.5h4.5v6H9zM2.5 9.5h4.5v4h-4.5z",
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  errors: `${RING}M8 5v3.5M8 10.9v.1`,
  tasks: "M6 3H3v10h3M10 3h3v10h-3M6.5 8h3",
  queues: "M2.5 4.5h6M2.5 8h6M2.5 11.5h6M11 5.5 13.5 8 11 10.5",
  workers: "M3.5 3.5h9v9h-9zM6.5 6.5h3v3h-3zM8 1.5v2M8 12.5v2M1.5 8h2M12.5 8h2",
  cron: "M2.5 4h11v9.5h-11zM2.5 7h11M5.5 2v3M10.5 2v3",
  history: "M2.5 2.5v11h11M5 10.5l2.5-3 2 2 3.5-4.5",
  enqueue: "M8 3v10M3 8h10",
  audit: "M4 2.5h5.5L12 5v8.5H4zM6 7h4M6 9.5h4",
  diagnosis: "M1.5 8h3l2-4.5 3 9 2-4.5h3",
  more: "M3.6 8h.8M7.6 8h.8M11.6 8h.8",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  down: "M4 6l4 4 4-4",
  up: "M4 10l4-4 4 4",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3l3.2 3.2",
  info: `${RING}M8 7.4V11M8 5v.1`,
  sun: `${DOT}M8 1v1.2M8 13.8V15M1 8h1.2M13.8 8H15M3 3l.9.9M12.1 12.1l.9.9M13 3l-.9.9M3.9 12.1l-.9.9`,
  moon: "M13 9.3A5.5 5.5 0 0 1 6.7 3a5.5 5.5 0 1 0 6.3 6.3z",
  user: "M8 2.5a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4zM3 13.5c.4-2.6 2.4-4 5-4s4.6 1.4 5 4",
};
const SAME = {
  locked: "running", blocked: "stale", alive: "ready", dead: "failed", ok: "succeeded", late: "stale", critical: "failed", warning: "stale",
  note: "info", good: "succeeded", warn: "stale", error: "failed", released: "retrying", deleted: "failed", close: "failed", help: "unknown",
};
const FILLED = ["ready", "running"];

/** An icon. The label is for screen readers, where no word is beside it. */
export function Icon({ name, label }) {
  const found = name in PATHS ? name : SAME[name] ?? "free";
  return html`<svg width="16" height="16" viewBox="0 0 16 16" fill=${FILLED.includes(found) ? "currentColor" : "none"} stroke="currentColor"
    stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" role=${label && "img"} aria-label=${label}
    aria-hidden=${label ? undefined : "true"}><path d=${PATHS[found]} /></svg>`;
}
