/** Icons of 16 × 16 in the color of the text beside them, from `icons.svg`. */
import { html } from "../lib.js";

/** An icon. The label is for screen readers, where no word is beside it. */
export const Icon = ({ name, label }) => html`<svg class="icon" role=${label && "img"} aria-label=${label} aria-hidden=${label ? undefined : "true"}>
  <use href=${`static/icons.svg#${name}`} /></svg>`;
