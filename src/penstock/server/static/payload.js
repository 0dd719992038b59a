// A payload for reading: JSON as a tree that folds, the text itself, and both to copy.
import { localTimes, make, tell } from "./core.js";

const OPEN_DEPTH = 2;
const MOST_CHILDREN = 500;

// A number that JavaScript would round is shown as it was written.
class Literal { constructor(source) { this.source = source; } }

function parse(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context?.source && Number.isInteger(value) && !Number.isSafeInteger(value)
      ? new Literal(context.source) : value);
}

function leaf(value) {
  if (value instanceof Literal) return make("span", value.source, { class: "json-number" });
  const kind = value === null ? "null" : typeof value;
  return make("span", JSON.stringify(value), { class: "json-" + kind });
}

function branch(name, value, depth) {
  const entries = Array.isArray(value) ? value.map((one, at) => [at, one]) : Object.entries(value);
  const [opening, closing] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const details = make("details");
  const summary = make("summary");
  if (name !== null) summary.append(make("span", String(name), { class: "json-key" }), ": ");
  summary.append(opening, make("span", ` ${entries.length} `, { class: "json-count" }), closing);
  details.append(summary);
  const fill = () => {
    if (details.childElementCount > 1) return;
    const children = make("div", null, { class: "json-children" });
    for (const [key, child] of entries.slice(0, MOST_CHILDREN)) children.append(node(key, child, depth + 1));
    if (entries.length > MOST_CHILDREN) children.append(make("div", `… and ${entries.length - MOST_CHILDREN} more`, { class: "note" }));
    details.append(children);
  };
  details.addEventListener("toggle", () => { if (details.open) fill(); });
  if (depth < OPEN_DEPTH && entries.length) { fill(); details.open = true; }
  return details;
}

function node(name, value, depth) {
  if (value !== null && typeof value === "object" && !(value instanceof Literal)) return branch(name, value, depth);
  const line = make("div", null, { class: "json-leaf" });
  if (name !== null) line.append(make("span", String(name), { class: "json-key" }), ": ");
  line.append(leaf(value));
  return line;
}

export function dress(article) {
  localTimes(article);
  const own = article.querySelector("[data-copy-address]");
  own?.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(new URL(own.dataset.copyAddress, location.href).href);
      tell("The address was copied");
    } catch { tell("This browser does not let the page copy; the link beside it has the address", true); }
  });
  const box = article.querySelector(".payload-box");
  if (!box) return;
  const raw = box.querySelector(".raw");
  const tree = box.querySelector(".json");
  const button = box.querySelector("[data-raw]");
  box.querySelector("[data-copy]").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(raw.textContent);
      tell("The payload was copied");
    } catch { tell("This browser does not let the page copy; select the text instead", true); }
  });
  if (box.dataset.format !== "json") return;
  let value;
  try { value = parse(raw.textContent); } catch { return; }
  tree.replaceChildren(node(null, value, 0));
  const show = (asText) => {
    raw.hidden = !asText;
    tree.hidden = asText;
    button.setAttribute("aria-pressed", String(asText));
  };
  button.hidden = false;
  button.addEventListener("click", () => show(raw.hidden));
  show(false);
}

for (const article of document.querySelectorAll("article.event")) dress(article);
