/** The vendored libraries under one roof: Preact, htm and signals. */
import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export * from "../vendor/preact.js";
export * from "../vendor/hooks.js";
export * from "../vendor/signals.js";

/** Templates that look like HTML. Values in them become text, attributes and listeners. */
export const html = htm.bind(h);
