/**
 * Live data, with one stream for all tabs of a browser.
 *
 * Visible tabs compete for a lock. The tab that holds it opens the stream and relays its events to
 * the other tabs. A tab that is hidden, paused or closed gives up the lock, so another one takes
 * over. A browser without visible tabs costs the server nothing.
 */
import { batch, useCallback, useEffect, useRef, useState } from "./lib.js";
import { address, get, loadSession } from "./api.js";
import { connection, overview, problem, session, setClock } from "./state.js";

const NAME = `graphile-worker.live:${document.baseURI}`;
// Less often if the database is slow.
const tickMs = () => (overview.peek()?.interval_seconds > 1 ? 2000 : 1000);
const FAILED_CONNECTS = 2;
const RETRY_STREAM_MS = 60000;
// Scripts do not see the comment that a stream carries every 15 s.
const SILENCE_MS = 45000;

// Browsers have locks only over https and on localhost. Elsewhere each tab has its own stream.
const channel = navigator.locks ? new BroadcastChannel(NAME) : null;
const tickListeners = new Set();

let isPaused = false;
let isLeader = false;
/** Ends the turn of this tab as the leader, or its wait for the lock. */
let turn = null;
let lastTick = 0;
let pendingTick = 0;

const isActive = () => !isPaused && !document.hidden && Boolean(session.peek()?.user);

export function start() {
  // The first data does not wait for the stream, and gives the reason if there is none.
  get("/overview").then(
    (value) => receive({ kind: "overview", value }),
    (error) => (problem.value = error),
  );
  document.addEventListener("visibilitychange", update);
  session.subscribe(update);
}

export function switchLive() {
  isPaused = !isPaused;
  connection.value = isPaused ? "paused" : "offline";
  update();
}

/** Calls a function after each overview, at most every 1 or 2 s. Returns a function that ends this. */
export function onTick(listener) {
  tickListeners.add(listener);
  return () => tickListeners.delete(listener);
}

/** Refreshes the page soon, for example after a change. */
export function tickNow() {
  lastTick = 0;
  tick();
}

function update() {
  if (isActive() && !turn) compete();
  else if (!isActive()) {
    turn?.abort();
    turn = null;
  }
}

async function compete() {
  turn = new AbortController();
  const { signal } = turn;
  // The leader answers with its latest overview. Without a leader, this tab gets the lock.
  channel?.postMessage({ kind: "hello" });
  try {
    await (channel ? navigator.locks.request(NAME, { signal }, () => lead(signal)) : lead(signal));
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

async function lead(signal) {
  isLeader = true;
  let failures = 0;
  while (!signal.aborted) {
    failures = (await stream(signal)) ? 0 : failures + 1;
    if (signal.aborted) break;
    if (failures >= FAILED_CONNECTS) await poll(signal);
    else {
      publish("status", "offline");
      await sleep(1000, signal);
    }
  }
  isLeader = false;
}

/** Reads the stream until it fails. Returns whether it had been opened. */
function stream(signal) {
  return new Promise((resolve) => {
    const source = new EventSource(address("/stream"));
    let hasOpened = false;
    let silence = 0;
    const end = () => {
      clearTimeout(silence);
      source.close();
      resolve(hasOpened);
    };
    const awaitNext = () => {
      clearTimeout(silence);
      silence = setTimeout(end, SILENCE_MS);
    };
    signal.addEventListener("abort", end, { once: true });
    source.onerror = end;
    source.onopen = () => {
      hasOpened = true;
      publish("status", "live");
    };
    source.addEventListener("overview", (event) => {
      awaitNext();
      publish("overview", JSON.parse(event.data));
    });
    source.addEventListener("bye", () => {
      end();
      loadSession().catch(() => {});
    });
    awaitNext();
  });
}

/** Reads the overview every 2 s for a minute, where streams do not pass a proxy. */
async function poll(signal) {
  const end = Date.now() + RETRY_STREAM_MS;
  while (!signal.aborted && Date.now() < end) {
    try {
      const value = await get("/overview", {}, { signal });
      publish("status", "polling");
      publish("overview", value);
    } catch (error) {
      if (error.code === "offline") publish("status", "offline");
      else if (!signal.aborted) problem.value = error;
    }
    await sleep(Math.max(2000, 1000 * (overview.peek()?.interval_seconds ?? 0)), signal);
  }
}

const sleep = (milliseconds, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", resolve, { once: true });
  });

function publish(kind, value) {
  channel?.postMessage({ kind, value });
  receive({ kind, value });
}

channel?.addEventListener("message", ({ data }) => {
  if (data.kind !== "hello") receive(data);
  else if (isLeader) {
    publish("status", connection.peek());
    if (overview.peek()) publish("overview", overview.peek());
  }
});

function receive({ kind, value }) {
  if (!isActive()) return;
  if (kind === "status") connection.value = value;
  else {
    batch(() => {
      if (value.taken_at) setClock(Date.parse(value.taken_at) + 1000 * value.age_seconds);
      overview.value = value;
      problem.value = null;
    });
    tick();
  }
}

function tick() {
  if (!isActive()) return;
  const wait = lastTick + tickMs() - Date.now();
  if (wait > 0) {
    pendingTick ||= setTimeout(() => ((pendingTick = 0), tick()), wait);
    return;
  }
  lastTick = Date.now();
  tickListeners.forEach((listener) => listener());
}

/**
 * Reads a path of the API now and after each tick, and keeps the last good answer. A path of null
 * reads nothing. The result has `data`, the answer to these parameters (`isCurrent`) or to the
 * last ones; `error`, of the last request; and `reload`.
 */
export function useLive(path, params = {}, { isFrozen = false, everyMs = 0 } = {}) {
  const [result, setResult] = useState({ data: null, error: null });
  const request = useRef(null);
  const askedAt = useRef(0);
  const key = JSON.stringify([path, params]);
  const reload = useCallback(async () => {
    if (path === null) return;
    request.current?.abort();
    const mine = (request.current = new AbortController());
    askedAt.current = Date.now();
    try {
      const data = await get(path, params, mine);
      if (!mine.signal.aborted) setResult({ data, error: null, key });
    } catch (error) {
      if (!mine.signal.aborted) setResult((last) => ({ ...last, error }));
    }
    if (request.current === mine) request.current = null;
  }, [key]);
  useEffect(() => {
    reload();
    return () => request.current?.abort();
  }, [reload]);
  useEffect(() => {
    if (isFrozen) return undefined;
    // A slow answer is awaited rather than asked for again.
    return onTick(() => request.current || Date.now() - askedAt.current < everyMs || reload());
  }, [reload, isFrozen]);
  return { ...result, isCurrent: result.key === key, reload };
}
