/** The frame of all pages: rail, header, notices, the page that the URL names, and dialogs. */
import {
  Button, Combobox, Dialog, Icon, Loading, Menu, Notice, Page, age, connection, count, dataAge, density, html, isDark, isStale, link, navigate, openDialog,
  overview, post, problem, registerShortcuts, route, session, shortcutGroups, shortcuts, switchLive, texts, theme, time, timeZone, useEffect,
  useErrorBoundary, useLayoutEffect, useLive, useShortcuts, useState, zone,
} from "./kit.js";
import Login, { loginError } from "./pages/login.js";

const BOTTOM_PAGES = 4;
const MAX_TALLY = 9999;
export const HEALTH_ICONS = { healthy: "good", degraded: "warn", stalled: "error" };

const showAge = () => age(Math.round(dataAge.value));
const openPalette = () => openDialog((close) => html`<${Palette} onClose=${close} />`);
const openHelp = () => openDialog((close) => html`<${Help} onClose=${close} />`);
const nextTheme = () => (theme.value = { system: "light", light: "dark", dark: "system" }[theme.value]);
const switchZone = () => (timeZone.value = timeZone.value === "utc" ? "local" : "utc");

const getFilter = () => document.querySelector("[data-filter]");

registerShortcuts("Everywhere", [
  ["Ctrl+k", "Go to a page, job, task or queue", openPalette],
  ["/", "Filter", () => (getFilter() ? getFilter().focus() : navigate("jobs?focus=filter"))],
  [".", "Pause or resume live data", switchLive],
  ["u", "Local time or UTC", switchZone],
  ["d", "Theme: system, light, dark", nextTheme],
  ["?", "This list", openHelp],
]);

function Environment() {
  const environment = session.value.environment;
  return environment && html`<span class="env" data-level=${environment.level}>${environment.name}</span>`;
}

function PageLink({ page: { path, title, tally: kind }, isShort, ...rest }) {
  const tally = overview.value?.tallies[path];
  return html`<a href=${link(path)} aria-current=${path === route.value.page ? "page" : undefined} ...${rest}>
    <${Icon} name=${path || "overview"} /><span class="word">${title}</span>
    ${tally > 0 && !isShort && html`<span class="tally" data-kind=${kind}>${count(Math.min(tally, MAX_TALLY))}${tally > MAX_TALLY && "+"}</span>`}</a>`;
}

function Rail() {
  const { database, schema, version } = session.value;
  const { pages } = texts.value;
  useShortcuts("Go to", pages.map(({ path, key, title }) => [`g ${key}`, title, () => navigate(path)]));
  return html`<nav class="rail" aria-label="Pages">
    <a class="brand" href=${link("")}><img src="static/icon.svg" alt="" /><span class="word">Graphile Worker</span></a>
    ${pages.map((page) => html`<${PageLink} key=${page.path} class="rail-link" page=${page} aria-label=${page.title} title=${`${page.title} (g ${page.key})`} />`)}
    <div class="rail-foot"><div title="Database">${database}</div><div title="Schema">${schema}</div><div>Version ${version}</div></div>
  </nav>`;
}

/** The rail of phones: the main pages, and a dialog with the others. */
function Bottom() {
  const { pages } = texts.value;
  const openMore = () => openDialog((close) => html`<${Dialog} title="Pages" onClose=${close}>
    <div onClick=${close}>${pages.slice(BOTTOM_PAGES).map((page) => html`<${PageLink} key=${page.path} class="menu-item" page=${page} />`)}</div><//>`);
  return html`<nav class="bottom" aria-label="Main pages">
    ${pages.slice(0, BOTTOM_PAGES).map((page) => html`<${PageLink} key=${page.path} page=${page} isShort />`)}
    <button type="button" aria-haspopup="dialog" onClick=${openMore}><${Icon} name="more" /><span class="word">More</span></button>
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
  // Announces changes of health, not every number.
  useEffect(() => setSpoken(verdict?.sentence), [verdict?.health]);
  return html`${route.value.page === ""
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
    <${Button} ...${tool} icon=${isDark.value ? "moon" : "sun"} label=${`Theme: ${theme.value} (d)`} onClick=${nextTheme} />
    <${Button} ...${tool} icon="help" label="Keyboard shortcuts (?)" onClick=${openHelp} />
    <${Menu} icon="user" kind="quiet" label=${session.value.user?.name ?? "Account"} items=${items} />
  </header>`;
}

function describeTrouble() {
  const { outage, taken_at: taken } = overview.value ?? {};
  if (outage) {
    // The overview explains a queue that it could never read.
    if (!taken) return route.value.page === "" ? null : outage.sentence;
    return `${outage.sentence} The pages show data from ${time(taken)}.`;
  }
  if (!overview.value) return problem.value?.detail;
  if (connection.value !== "offline" || !(dataAge.value > 5)) return null;
  return `The dashboard’s server does not answer, reconnecting. The pages show data that is ${showAge()} old.`;
}

/** An outage, a problem with the schema, or old data. */
function Banner() {
  const text = describeTrouble();
  const { outage } = overview.value ?? {};
  return text && html`<div class="banner" data-kind=${overview.value && !outage ? "warn" : "error"} data-outage=${outage?.code} role="alert"><${Icon} name="warn" /><span>${text}</span></div>`;
}

const modules = new Map();
let isFirstPage = true;

/** The page of the URL. Its module is loaded on first use. */
function Body({ page, id }) {
  const name = (id && page?.item_module) || page?.module;
  const [module, setModule] = useState(modules.get(name));
  const [failure, setFailure] = useState(null);
  const [error] = useErrorBoundary();
  // Before the next key, which may move the focus, and unless the page did.
  useLayoutEffect(() => {
    if (page && !module) import(`./pages/${name}.js`).then((value) => setModule(modules.set(name, value).get(name)), setFailure);
    if (!isFirstPage && !document.activeElement.closest("main")) focusMain();
    isFirstPage = false;
  }, []);
  const names = [id, (id && page?.item_title) || page?.title, "Graphile Worker", session.value.environment?.name];
  useEffect(() => {
    document.title = names.filter(Boolean).join(" · ");
  }, [names.join()]);
  if (error || failure) {
    return html`<${Notice} kind="error"><strong>This page failed.</strong> ${(error ?? failure).message}
      <${Button} onClick=${() => location.reload()}>Reload<//><//>`;
  }
  if (!page) return html`<${Page} title="Page not found"><p><a href=${link("")}>Open the overview</a></p><//>`;
  return module ? html`<${module.default} page=${page} id=${id} query=${route.value.query} />` : html`<${Loading} />`;
}

/** Goes to a page, job, task or queue by name. */
function Palette({ onClose }) {
  const [text, setText] = useState("");
  const { data, isCurrent } = useLive(text.trim() ? "/places" : null, { q: text }, { isFrozen: true });
  const pages = texts.value.pages.filter(({ title }) => title.toLowerCase().startsWith(text.trim().toLowerCase()));
  const options = [...pages.map(({ path, title }) => ({ text: path, label: title, help: "page" })), ...(isCurrent && data ? data.options : [])];
  const go = (option) => {
    onClose();
    navigate(option.text);
  };
  return html`<${Dialog} title="Go to" onClose=${onClose}><${Combobox} name="palette" label="Page, job id, task or queue"
    placeholder="Page, job id, task or queue" value=${text} options=${options} first=${0} onType=${setText} onPick=${go} /><//>`;
}

const KEY_NAMES = { ArrowDown: "↓", ArrowUp: "↑", Escape: "Esc" };

function Help({ onClose }) {
  const showKeys = (keys) => keys.split(", ").map((key) => html`<kbd>${KEY_NAMES[key] ?? key}</kbd> `);
  return html`<${Dialog} title="Keyboard shortcuts" isWide onClose=${onClose}>
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
  const { page: path, id } = route.value;
  const page = texts.value.pages.find((each) => each.path === path && (!id || each.item));
  return html`<div class="shell">
      <a class="skip" href="#main" onClick=${focusMain}>Skip to the content</a>
      <${Rail} /><${Header} /><${Banner} />
      <main class="main" id="main" tabindex="-1"><${Body} key=${`${path}/${id}`} page=${page} id=${id} /></main>
      <${Bottom} />
    </div>
    ${!here.user && html`<${Dialog} title="Your session has ended" onClose=${() => {}}><${Login} /><//>`}`;
}
