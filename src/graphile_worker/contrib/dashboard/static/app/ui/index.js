/** The components that all pages use. */
export * from "./act.js";
export * from "./button.js";
export * from "./chart.js";
export * from "./code.js";
export * from "./combobox.js";
export * from "./dialog.js";
export * from "./form.js";
export * from "./icon.js";
export * from "./loaded.js";
export * from "./page.js";
export * from "./table.js";
export * from "./toast.js";
export * from "./values.js";
export * as column from "./columns.js";
