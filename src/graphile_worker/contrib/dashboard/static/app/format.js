/** Numbers, durations and times as text. */
import { now, timeZone } from "./state.js";

const NUMBER = new Intl.NumberFormat("en-US");
const DIGIT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
const DASH = "–";

/** A whole number: "12,431". */
export const count = (number) => (number == null ? DASH : NUMBER.format(number));

/** The sum of the values of an object, for example of counts by state. */
export const sum = (numbers) => Object.values(numbers).reduce((total, number) => total + number, 0);

/** A count with its noun: "1 job", "12,431 jobs". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A duration with at most two units: "6m12s". */
export function age(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return DASH;
  const value = Math.abs(seconds);
  if (value > 0 && value < 1) return `${Math.max(1, Math.round(value * 1000))}ms`;
  if (value < 10 && value % 1 >= 0.05) return `${value.toFixed(1)}s`;
  const whole = Math.round(value);
  const first = UNITS.findIndex(([, size]) => size <= Math.max(1, whole));
  const [[unit, size], [nextUnit, nextSize] = ["", Infinity]] = UNITS.slice(first);
  const rest = Math.floor((whole % size) / nextSize);
  return `${count(Math.floor(whole / size))}${unit}${rest ? rest + nextUnit : ""}`;
}

/** Seconds from a time until the database's clock; negative for the future. */
export const secondsSince = (time) => (now() - Date.parse(time)) / 1000;

/** "3m ago" or "in 2m40s", by the database's clock. */
export function ago(time) {
  if (!time) return DASH;
  const seconds = Math.round(secondsSince(time));
  if (!(Math.abs(seconds) < 3e9)) return "never";
  if (Math.abs(seconds) < 2) return "now";
  return seconds > 0 ? `${age(seconds)} ago` : `in ${age(seconds)}`;
}

const intl = (options) =>
  new Intl.DateTimeFormat("en-US", { hourCycle: "h23", timeZone: timeZone.value === "utc" ? "UTC" : undefined, ...options });

/** The name of the zone in which times are shown: "UTC", "GMT+2". */
export const zone = () => intl({ timeZoneName: "short" }).formatToParts(now()).find((part) => part.type === "timeZoneName").value;

/** A time with its zone; with its date unless that is today: "Aug 1, 12:07:11 UTC". */
export function time(at, { seconds = true } = {}) {
  const value = Date.parse(at);
  if (!at || Number.isNaN(value)) return DASH;
  const differs = (options) => intl(options).format(value) !== intl(options).format(now());
  return intl({
    hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, timeZoneName: "short",
    ...(differs({ dateStyle: "short" }) && { month: "short", day: "numeric" }),
    ...(differs({ year: "numeric" }) && { year: "numeric" }),
  }).format(value);
}

/** A rate per second, or per minute or hour where that reads better. */
export function rate(perSecond) {
  if (perSecond == null) return DASH;
  if (perSecond >= 10) return `${count(Math.round(perSecond))}/s`;
  if (perSecond >= 0.1 || perSecond === 0) return `${DIGIT.format(perSecond)}/s`;
  if (perSecond * 60 >= 1) return `${DIGIT.format(perSecond * 60)}/min`;
  return `${DIGIT.format(perSecond * 3600)}/h`;
}
