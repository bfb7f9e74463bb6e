"use strict";

// The address keeps what a person chose: #table.column.direction, or #ranges.order.
function sortTable(table, column, direction) {
  const head = table.tHead.rows[0].cells;
  const body = table.tBodies[0];
  const sign = direction === "descending" ? -1 : 1;
  const value = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  const numeric = !head[column].classList.contains("text");
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (!numeric) return sign * x.localeCompare(y, undefined, { numeric: true });
    // Rows without a value come last in both directions.
    if (x === "" || y === "") return (x === "") - (y === "");
    return sign * (Number(x) - Number(y));
  });
  body.append(...rows);
  for (const cell of head) cell.removeAttribute("aria-sort");
  head[column].setAttribute("aria-sort", direction);
}

function sortChart(chart, order) {
  const rows = [...chart.querySelectorAll(".chart-row")];
  rows.sort((a, b) => Number(a.dataset[order]) - Number(b.dataset[order]));
  chart.append(...rows);
}

function restore() {
  const [name, what, direction] = decodeURIComponent(location.hash.slice(1)).split(".");
  const element = document.getElementById(name);
  if (element instanceof HTMLTableElement && Number(what) < element.tHead.rows[0].cells.length) {
    sortTable(element, Number(what), direction === "descending" ? "descending" : "ascending");
  }
  const select = document.getElementById("order");
  if (name === "ranges" && select && [...select.options].some((o) => o.value === what)) {
    select.value = what;
    sortChart(document.getElementById("ranges"), what);
  }
}

for (const table of document.querySelectorAll("table.sortable")) {
  // On narrow screens each cell stands on a line of its own, with its heading.
  const labels = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, column) => { cell.dataset.label = labels[column]; });
  }
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    cell.querySelector("button").addEventListener("click", () => {
      const text = cell.classList.contains("text");
      const now = cell.getAttribute("aria-sort");
      // Numbers: the largest first.
      const direction = now
        ? now === "ascending" ? "descending" : "ascending"
        : text ? "ascending" : "descending";
      sortTable(table, column, direction);
      history.replaceState(null, "", `#${table.id}.${column}.${direction}`);
    });
  });
}

const order = document.getElementById("order");
if (order) {
  order.addEventListener("change", () => {
    sortChart(document.getElementById("ranges"), order.value);
    history.replaceState(null, "", `#ranges.${order.value}`);
  });
}

const filter = document.getElementById("filter");
if (filter) {
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll("[data-name]")) {
      const name = row.dataset.name.toLowerCase();
      row.hidden = !words.every((word) => name.includes(word));
    }
  });
}

window.addEventListener("hashchange", restore);
restore();
