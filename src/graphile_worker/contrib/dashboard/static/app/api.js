/** Requests to the JSON API. */
import { queryString } from "./router.js";
import { session, setClock } from "./state.js";

const ROOT = new URL("api/v1", document.baseURI).href;

const OFFLINE = "The dashboard’s server does not answer";

/** An answer that is an error, or no answer at all (status 0, code "offline"). */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || `The server answered ${status}.`);
    Object.assign(this, { status, problem, code: problem.code ?? "unknown", title: problem.title ?? "This cannot be shown now", detail: this.message });
  }
}

/** The address of a path of the API, with its query parameters. */
export const address = (path, params = {}) => ROOT + path + queryString(params);

async function request(method, path, { params, body, signal } = {}) {
  const options = { method, signal, credentials: "same-origin", cache: "no-store", headers: { Accept: "application/json" } };
  if (method !== "GET") {
    Object.assign(options.headers, { "Content-Type": "application/json", "X-CSRF-Token": session.peek()?.csrf ?? "" });
    options.body = JSON.stringify(body ?? {});
  }
  const answer = await fetch(address(path, params), options).catch((error) => {
    throw error.name === "AbortError" ? error : new ApiError(0, { code: "offline", title: OFFLINE, detail: `${OFFLINE}.` });
  });
  const content = await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return { detail: `The server answered ${answer.status} without an explanation.` };
  });
  if (!answer.ok) {
    // The shell shows the login above the page, which keeps its state.
    if (answer.status === 401 && session.peek()?.user) session.value = { ...session.peek(), user: null, has_expired: true };
    throw new ApiError(answer.status, content);
  }
  // The `now` of an overview is the time of its last look, which may be long ago.
  if (content.now && content.age_seconds === undefined) setClock(Date.parse(content.now));
  return content;
}

/** Whether an error is an outage, which the banner of the shell reports. */
export const isOutage = (error) => ["database_unreachable", "offline"].includes(error?.code);

export const get = (path, params, { signal } = {}) => request("GET", path, { params, signal });

async function change(method, path, body) {
  try {
    return await request(method, path, { body });
  } catch (error) {
    if (error.code !== "csrf") throw error;
    // The token belongs to an earlier session of this browser.
    await loadSession();
    return request(method, path, { body });
  }
}

export const post = (path, body) => change("POST", path, body);
export const del = (path) => change("DELETE", path);

/** Reads who is signed in and what this dashboard offers. A session that ended keeps the rest. */
export async function loadSession() {
  const answer = await get("/session");
  const before = session.peek();
  const hasEnded = !answer.user && (before?.user || before?.has_expired);
  session.value = hasEnded ? { ...before, user: null, csrf: answer.csrf, login: answer.login, has_expired: true } : answer;
}
