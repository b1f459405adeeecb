/** What all pages share: the session, the latest overview, the clock and the user's choices. */
import { computed, effect, signal } from "./lib.js";

// Both are null until they arrive.
export const session = signal(null);
export const overview = signal(null);
/** Why the overview is missing: an ApiError, for example because the schema does not exist. */
export const problem = signal(null);
/** "live", "polling", "paused" or "offline". */
export const connection = signal("offline");

let storage = {};
try {
  storage = localStorage;
} catch {
  // Without storage, choices last until the page is closed.
}

/** A text that this browser keeps. */
export function stored(name, initial, isValid = () => true) {
  const key = `graphile-worker.${name}`;
  const text = signal(key in storage && isValid(storage[key]) ? storage[key] : initial);
  effect(() => {
    storage[key] = text.value;
  });
  return text;
}

const choose = (name, ...choices) => stored(name, choices[0], (value) => choices.includes(value));

export const timeZone = choose("timeZone", "local", "utc");
export const theme = choose("theme", "system", "light", "dark");
export const density = choose("density", "compact", "comfortable");
export const shortcuts = choose("shortcuts", "on", "off");

effect(() => {
  const { dataset } = document.documentElement;
  dataset.density = density.value;
  if (theme.value === "system") delete dataset.theme;
  else dataset.theme = theme.value;
});

const media = matchMedia("(prefers-color-scheme: dark)");
const isSystemDark = signal(media.matches);
media.onchange = () => (isSystemDark.value = media.matches);
export const isDark = computed(() => (theme.value === "system" ? isSystemDark.value : theme.value === "dark"));

/** Milliseconds that the database's clock is ahead of this computer's clock. */
const clock = signal(0);
/** The time of this computer, updated every second while the page is visible. */
const moment = signal(Date.now());
const updateMoment = () => document.hidden || (moment.value = Date.now());
setInterval(updateMoment, 1000);
document.addEventListener("visibilitychange", updateMoment);

/** The database's time in milliseconds. A component that reads it while it renders renders again every second. */
export const now = () => moment.value + clock.value;

/** Learns the database's clock: its time now, in milliseconds. */
export function setClock(milliseconds) {
  const offset = milliseconds - Date.now();
  // Offsets below half a second are the duration of the request.
  if (Number.isFinite(offset) && Math.abs(offset - clock.peek()) > 500) clock.value = offset;
}

/** How old the overview is, in seconds, or null. */
export const dataAge = computed(() => {
  const taken = overview.value?.taken_at;
  return taken ? Math.max(0, (now() - Date.parse(taken)) / 1000) : null;
});

/** Whether the overview is older than three of its intervals. */
export const isStale = computed(() => (dataAge.value ?? 0) > Math.max(10, 3 * (overview.value?.interval_seconds ?? 2)));

/** Why the user cannot do something now, or nothing if they can. */
export function whyNot(permission) {
  const { outage } = overview.value ?? {};
  return session.value.obstacles[permission] ?? (outage && `${outage.title}.`);
}

/** Texts of the server: of states, actions, pauses and more. */
export const texts = computed(() => session.value.texts);
