/** Changes that a page asks the server for, which the server defines. */
import { html } from "../lib.js";
import { get, post } from "../api.js";
import { openBulk } from "../bulk.js";
import { tickNow } from "../live.js";
import { link, navigate } from "../router.js";
import { texts, whyNot } from "../state.js";
import { Button, Menu } from "./button.js";
import { confirmAction } from "./dialog.js";
import { toast } from "./toast.js";

const PATHS = ["path", "open"];

/** A text of the server, with values of the row in the place of their names: `{name}`. */
const put = (text, row, encode = String) => text.replace(/\{(\w+)\}/g, (_, name) => encode(row[name]));
export const putPath = (path, row) => put(path, row, encodeURIComponent);

const fill = (change, row) => JSON.parse(JSON.stringify(change), (key, value) =>
  (typeof value !== "string" ? value : (PATHS.includes(key) ? putPath : put)(value, row)));

/** Why the user cannot make a change now, or nothing if they can. */
const obstacleOf = ({ permission, obstacle, row }) => whyNot(permission) || (row ?? { obstacle }).obstacle;

/** Makes a change, after its question, and reports its result. */
async function act({ path, body, question, bulk, open }) {
  if (bulk) return openBulk(bulk);
  try {
    if (open) return navigate((await get(open)).link);
    const values = question ? await confirmAction(question) : {};
    if (!values) return undefined;
    toast((await post(path, { ...body, ...values })).sentence, "good");
    return tickNow();
  } catch (error) {
    return toast(error.detail, "error");
  }
}

/** Makes a change, or reports why the user cannot, as its button does. */
export const tryAct = (change) => (obstacleOf(change) ? toast(obstacleOf(change), "warn") : act(change));

const toButton = ({ label, icon, kind, href, row, ...change }) => ({
  label: row ? put(label, row) : label, icon, kind, disabledReason: obstacleOf({ ...change, row }),
  href: href && link(row ? putPath(href, row) : href), onClick: href ? undefined : () => act(row ? fill(change, row) : change),
});

/** Buttons of changes: names of templates for a row, or changes as they are. A title has no quiet buttons. */
export function Changes({ changes, row, isTitle }) {
  const all = changes.map((each) => (typeof each === "string" ? { ...texts.value.changes[each], row } : each));
  const more = all.filter((each) => each.is_more);
  return html`${all.filter((each) => !each.is_more).map((each) => {
    const { label, kind, ...button } = toButton(each);
    return html`<${Button} key=${label} ...${button} kind=${isTitle && kind === "quiet" ? undefined : kind}
      label=${each.is_icon ? label : undefined}>${each.is_icon ? null : label}<//>`;
  })}
  ${more.length > 0 && html`<${Menu} label=${isTitle ? "More" : "More actions"} icon=${isTitle ? null : "more"} items=${more.map(toButton)} />`}`;
}
