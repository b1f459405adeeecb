// Sets the theme and the density before the first paint. A classic script, so that it blocks.
for (const name of ["theme", "density"]) {
  let value = null;
  try {
    value = localStorage.getItem(`graphile-worker.${name}`);
  } catch {
    // The browser stores nothing for this site: the defaults apply.
  }
  if (value && value !== "system") document.documentElement.dataset[name] = value;
}
