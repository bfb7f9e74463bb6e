"use strict";
// Marks what the chosen operator gets (dashed) and who gets what it gives.
const boxes = [...document.querySelectorAll(".box")];
const sources = (box) => box.dataset.sources.split(" ").filter(Boolean);
const byNumber = new Map(boxes.map((box) => [box.dataset.number, box]));
function choose(box) {
  for (const other of boxes) {
    other.classList.toggle("source", sources(box).includes(other.dataset.number));
    other.classList.toggle("target", sources(other).includes(box.dataset.number));
  }
  const drawn = sources(box).filter((n) => byNumber.has(n));
  const names = drawn.map((n) => byNumber.get(n).querySelector("title").textContent);
  const text = box.querySelector("title").textContent;
  document.getElementById("chosen").textContent =
    names.length ? `${text}. It gets: ${names.join("; ")}.` : `${text}.`;
}
for (const box of boxes) box.addEventListener("focus", () => choose(box));
for (const box of boxes) box.addEventListener("click", () => box.focus());
// The page opens at the first finding.
const first = document.querySelector(".named");
if (first) {
  choose(first.closest(".box"));
  first.scrollIntoView({ block: "center", inline: "center" });
}
