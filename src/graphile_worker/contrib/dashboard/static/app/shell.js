/** The frame of all pages: rail, header, notices, the page that the URL names, and dialogs. */
import { html, signal, useEffect, useErrorBoundary, useState } from "./lib.js";
import { post } from "./api.js";
import { age, count, time, zone } from "./format.js";
import { registerShortcuts, shortcutGroups } from "./keyboard.js";
import { switchLive, useLive } from "./live.js";
import { link, navigate, route } from "./router.js";
import { connection, dataAge, density, isStale, overview, problem, session, shortcuts, theme, timeZone } from "./state.js";
import { Button, Combobox, Dialog, Icon, Loading, Menu, Notice, Page } from "./ui/index.js";
import Login, { loginError } from "./pages/login.js";

/** Pages of the rail: path, key after `g`, label, and the number beside the label with its kind. */
const PAGES = [
  ["", "o", "Overview"],
  ["jobs", "j", "Jobs"],
  ["errors", "e", "Errors", (data) => data.totals?.failed, "bad"],
  ["queues", "q", "Queues", (data) => data.paused?.queues, "warn"],
  ["tasks", "t", "Tasks", (data) => data.paused?.tasks, "warn"],
  ["workers", "w", "Workers", (data) => data.workers?.dead, "bad"],
  ["cron", "c", "Cron"],
  ["history", "h", "History"],
  ["enqueue", "n", "Enqueue"],
  ["diagnosis", "d", "Diagnosis"],
  ["audit", "a", "Audit"],
];
const BOTTOM_PAGES = 4;
const MAX_TALLY = 9999;
export const HEALTH_ICONS = { healthy: "good", degraded: "warn", stalled: "error" };

const showAge = () => age(Math.round(dataAge.value));
const isHelpOpen = signal(false);
const isPaletteOpen = signal(false);
const openPalette = () => (isPaletteOpen.value = true);
const openHelp = () => (isHelpOpen.value = true);
const nextTheme = () => (theme.value = { system: "light", light: "dark", dark: "system" }[theme.value]);
const switchZone = () => (timeZone.value = timeZone.value === "utc" ? "local" : "utc");
const isDark = () => theme.value === "dark" || (theme.value === "system" && matchMedia("(prefers-color-scheme: dark)").matches);

const getFilter = () => document.querySelector("[data-filter]");

registerShortcuts("Everywhere", [
  ["Ctrl+k", "Go to a page, job, task or queue", openPalette],
  ["/", "Filter", () => (getFilter() ? getFilter().focus() : navigate("jobs?focus=filter"))],
  [".", "Pause or resume live data", switchLive],
  ["u", "Local time or UTC", switchZone],
  ["d", "Theme: system, light, dark", nextTheme],
  ["?", "This list", openHelp],
]);
registerShortcuts("Go to", PAGES.map(([path, key, label]) => [`g ${key}`, label, () => navigate(path)]));

function Environment() {
  const environment = session.value.environment;
  return environment && html`<span class="env" data-level=${environment.level}>${environment.name}</span>`;
}

function PageLink({ page: [path, , label, getTally, kind], ...rest }) {
  const tally = overview.value && getTally?.(overview.value);
  const current = { overview: "", job: "jobs" }[route.value.page] ?? route.value.page;
  return html`<a href=${link(path)} aria-current=${path === current ? "page" : undefined} ...${rest}>
    <${Icon} name=${path || "overview"} /><span class="word">${label}</span>
    ${tally > 0 && kind && html`<span class="tally" data-kind=${kind}>${count(Math.min(tally, MAX_TALLY))}${tally > MAX_TALLY && "+"}</span>`}</a>`;
}

function Rail() {
  const { database, schema, version } = session.value;
  return html`<nav class="rail" aria-label="Pages">
    <a class="brand" href=${link("")}><img src="static/icon.svg" alt="" /><span class="word">Graphile Worker</span></a>
    ${PAGES.map((page) => html`<${PageLink} key=${page[0]} class="rail-link" page=${page} aria-label=${page[2]} title=${`${page[2]} (g ${page[1]})`} />`)}
    <div class="rail-foot"><div title="Database">${database}</div><div title="Schema">${schema}</div><div>Version ${version}</div></div>
  </nav>`;
}

/** The rail of phones: the main pages, and a dialog with the others. */
function Bottom() {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [route.value.page]);
  return html`<nav class="bottom" aria-label="Main pages">
    ${PAGES.slice(0, BOTTOM_PAGES).map((page) => html`<${PageLink} key=${page[0]} page=${page.slice(0, 3)} />`)}
    <button type="button" aria-haspopup="dialog" onClick=${() => setOpen(true)}><${Icon} name="more" /><span class="word">More</span></button>
    ${isOpen && html`<${Dialog} title="Pages" onClose=${() => setOpen(false)}>
      <div>${PAGES.slice(BOTTOM_PAGES).map((page) => html`<${PageLink} key=${page[0]} class="menu-item" page=${page} />`)}</div><//>`}
  </nav>`;
}

const STATUS = { live: "Live", polling: "Polling", paused: "Paused", offline: "Reconnecting", outage: "Outage" };

function Status() {
  const state = overview.value?.outage && connection.value === "live" ? "outage" : connection.value;
  const label = overview.value || state !== "offline" ? STATUS[state] : "Connecting";
  const isOld = dataAge.value !== null && (isStale.value || !["live", "polling"].includes(state));
  const verb = state === "paused" ? "Resume" : "Pause";
  return html`<button type="button" class="button" data-kind="quiet" title=${`${verb} live data (.)`} onClick=${switchLive}
    aria-label=${`${label}. ${verb} live data`}>
    <span class="status" data-connection=${isStale.value && state === "live" ? "polling" : state}>
      ${label}${isOld && `, data ${showAge()} old`}</span></button>`;
}

/** The verdict; on the overview, whose title it is, where the data comes from instead. */
function Verdict() {
  const verdict = overview.value?.verdict;
  const { database, schema } = session.value;
  const [spoken, setSpoken] = useState("");
  // Announces changes of health, not every number in the sentence.
  useEffect(() => setSpoken(verdict?.sentence), [verdict?.health]);
  return html`${route.value.page === "overview"
      ? html`<span class="place">${database} · ${schema}</span>`
      : html`<a class="verdict" data-health=${verdict?.health} href=${link("")} title=${verdict?.sentence}>
          ${verdict && html`<${Icon} name=${HEALTH_ICONS[verdict.health] ?? "unknown"} />`}
          <span>${verdict?.sentence ?? "Waiting for the first data"}</span></a>`}
    <span class="visually-hidden" role="status">${spoken}</span>`;
}

async function signOut() {
  await post("/logout").catch(() => {});
  location.reload();
}

function Header() {
  const isCompact = density.value === "compact";
  const items = [
    { label: timeZone.value === "utc" ? "Show local time" : "Show UTC", onClick: switchZone },
    { label: `Theme: ${theme.value}`, onClick: nextTheme },
    { label: isCompact ? "Taller rows" : "Compact rows", onClick: () => (density.value = isCompact ? "comfortable" : "compact") },
    { label: "Keyboard shortcuts", onClick: openHelp },
    { label: "Sign out", onClick: signOut },
  ];
  const tool = { class: "wide-only", kind: "quiet" };
  return html`<header class="top">
    <${Environment} /><${Verdict} /><span class="spacer"></span><${Status} />
    <${Button} ...${tool} icon="search" label="Go to (Ctrl+K)" onClick=${openPalette} />
    <${Button} ...${tool} title="Local time or UTC (u)" onClick=${switchZone}>${zone()}<//>
    <${Button} ...${tool} icon=${isDark() ? "moon" : "sun"} label=${`Theme: ${theme.value} (d)`} onClick=${nextTheme} />
    <${Button} ...${tool} icon="help" label="Keyboard shortcuts (?)" onClick=${openHelp} />
    <${Menu} icon="user" kind="quiet" label=${session.value.user?.name ?? "Account"} items=${items} />
  </header>`;
}

function describeTrouble() {
  const { outage, taken_at: taken } = overview.value ?? {};
  if (outage) {
    // The overview explains a queue that it could never read.
    if (!taken) return route.value.page === "overview" ? null : outage.sentence;
    return `${outage.sentence} The pages show data from ${time(taken)}.`;
  }
  if (!overview.value) return problem.value?.detail;
  if (connection.value !== "offline" || !(dataAge.value > 5)) return null;
  return `The dashboard’s server does not answer, reconnecting. The pages show data that is ${showAge()} old.`;
}

/** What the reader must know before any number: an outage, a problem with the schema, old data. */
function Banner() {
  const text = describeTrouble();
  const { outage } = overview.value ?? {};
  return text && html`<div class="banner" data-kind=${overview.value && !outage ? "warn" : "error"} data-outage=${outage?.code} role="alert"><${Icon} name="warn" /><span>${text}</span></div>`;
}

const modules = new Map();
let isFirstPage = true;

/** The page of the URL. Its module is loaded when it is first needed. */
function Body({ page }) {
  const { params, query } = route.value;
  const [module, setModule] = useState(modules.get(page));
  const [failure, setFailure] = useState(null);
  const [error] = useErrorBoundary();
  useEffect(() => {
    if (page !== "missing" && !module) {
      import(`./pages/${page}.js`).then((value) => setModule(modules.set(page, value).get(page)), setFailure);
    }
    if (!isFirstPage) focusMain();
    isFirstPage = false;
  }, []);
  const names = [...Object.values(params), module?.title, "Graphile Worker", session.value.environment?.name];
  useEffect(() => {
    document.title = names.filter(Boolean).join(" · ");
  }, [names.join()]);
  if (error || failure) {
    return html`<${Notice} kind="error"><strong>This page failed.</strong> ${(error ?? failure).message}
      <${Button} onClick=${() => location.reload()}>Reload<//><//>`;
  }
  if (page === "missing") return html`<${Page} title="Page not found"><p><a href=${link("")}>Open the overview</a></p><//>`;
  return module ? html`<${module.default} params=${params} query=${query} />` : html`<${Loading} />`;
}

/** Goes to a page, a job, a task or a queue by its name. */
function Palette({ onClose }) {
  const [text, setText] = useState("");
  const { data, isCurrent } = useLive(text.trim() ? "/places" : null, { q: text }, { isFrozen: true });
  const pages = PAGES.filter(([, , label]) => label.toLowerCase().startsWith(text.trim().toLowerCase()));
  const options = [...pages.map(([path, , label]) => ({ text: path, label, help: "page" })), ...(isCurrent && data ? data.options : [])];
  const go = (option) => {
    onClose();
    navigate(option.text);
  };
  return html`<${Dialog} title="Go to" onClose=${onClose}><${Combobox} name="palette" label="Page, job id, task or queue"
    placeholder="Page, job id, task or queue" value=${text} options=${options} first=${0} onType=${setText} onPick=${go} /><//>`;
}

const KEY_NAMES = { ArrowDown: "↓", ArrowUp: "↑", Escape: "Esc" };

function Help() {
  const showKeys = (keys) => keys.split(", ").map((key) => html`<kbd>${KEY_NAMES[key] ?? key}</kbd> `);
  return html`<${Dialog} title="Keyboard shortcuts" isWide onClose=${() => (isHelpOpen.value = false)}>
    <div class="shortcuts">
      ${shortcutGroups.value.map((group) => html`<section key=${group.title}>
        <h3>${group.title}</h3>
        <dl>${group.items.map(([keys, help]) => html`<div key=${keys}><dt>${showKeys(keys)}</dt><dd>${help}</dd></div>`)}</dl>
      </section>`)}
    </div>
    <label class="check"><input type="checkbox" checked=${shortcuts.value === "on"}
      onChange=${(event) => (shortcuts.value = event.target.checked ? "on" : "off")} />Use single keys as shortcuts</label>
  <//>`;
}

function focusMain(event) {
  event?.preventDefault();
  document.getElementById("main").focus({ preventScroll: true });
}

export function Shell() {
  const here = session.value;
  if (!here) return html`<main class="login"><p role="status">${loginError.value ?? "Loading…"}</p></main>`;
  if (!here.user && !here.has_expired) {
    return html`<main class="login"><${Environment} /><div class="panel"><${Login} /></div></main>`;
  }
  return html`<div class="shell">
      <a class="skip" href="#main" onClick=${focusMain}>Skip to the content</a>
      <${Rail} /><${Header} /><${Banner} />
      <main class="main" id="main" tabindex="-1"><${Body} key=${route.value.page} page=${route.value.page} /></main>
      <${Bottom} />
    </div>
    ${isHelpOpen.value && html`<${Help} />`}
    ${isPaletteOpen.value && html`<${Palette} onClose=${() => (isPaletteOpen.value = false)} />`}
    ${!here.user && html`<${Dialog} title="Your session has ended" onClose=${() => {}}><${Login} /><//>`}`;
}
