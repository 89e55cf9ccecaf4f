// The table of cells: sorted by a click on a heading, filtered by words. Without this it is a plain table.
"use strict";
(() => {
  const table = document.getElementById("cells");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];

  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (a, b) =>
    typeof a === "number" ? (a > b) - (a < b) : a.localeCompare(b, "en", { numeric: true });

  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", direction);
      const sign = direction === "ascending" ? 1 : -1;
      rows.sort((a, b) => sign * compare(key(a, column), key(b, column)));
      body.append(...rows);
    });
  });

  const filter = document.createElement("div");
  filter.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "all of these words: fail bfloat16 2x4x41";
  input.setAttribute("aria-label", "Show the cells that contain all of these words");
  const count = document.createElement("output");
  const words = (row) => [row.title, ...[...row.cells].map((cell) => cell.textContent)].join(" ").toLowerCase();
  const texts = new Map(rows.map((row) => [row, words(row)]));
  const show = () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of texts) {
      row.hidden = !wanted.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} cells`;
  };
  input.addEventListener("input", show);
  filter.append(input, count);
  table.parentElement.before(filter);
  show();
})();
