// Select all jobs of a page with the checkbox in the header of the table.
"use strict";

for (const toggle of document.querySelectorAll(".gw-toggle")) {
  const boxes = [...toggle.closest("form").querySelectorAll("input[name=id]")];
  const show = () => {
    const count = boxes.filter((box) => box.checked).length;
    toggle.checked = count === boxes.length;
    toggle.indeterminate = count > 0 && count < boxes.length;
  };
  toggle.hidden = false;
  toggle.addEventListener("change", () => {
    for (const box of boxes) {
      box.checked = toggle.checked;
    }
  });
  for (const box of boxes) {
    box.addEventListener("change", show);
  }
  // A browser restores the boxes of a page that the user returns to.
  show();
}
