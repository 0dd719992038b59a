// Keeps tiles, tables and the line at the top as the server says they are, and says when it says nothing any more.
import { $, ISO, base, body, localTime, make, markFound } from "./core.js";

function buttons(row) {
  const cell = make("td", null, { class: "acts" });
  for (const one of row.buttons ?? []) {
    const button = make("button", one.label, {
      type: "button", class: one.in_menu ? "danger small" : "plain small", "data-act": one.act, "data-fields": JSON.stringify(one.fields),
      "aria-label": `${one.label} ${row.cells[0]}`,
    });
    cell.append(one.in_menu ? menu(`More for ${row.cells[0]}`, button) : button);
  }
  return cell;
}

function menu(label, button) {
  const found = make("details", null, { class: "menu" }), inside = make("div", null);
  inside.append(button);
  found.append(make("summary", "⋯", { "aria-label": label }), inside);
  return found;
}

function columnsOf(table, name) { return new Set((table.dataset[name] || "").split(",").filter(Boolean).map(Number)); }

function newLine(table, row) {
  const line = make("tr", null, { "data-key": row.key, "data-event": table.dataset.opens ? row.href : null });
  const numeric = columnsOf(table, "numeric"), minor = columnsOf(table, "minor");
  row.cells.forEach((_, column) => {
    const cell = make("td", null);
    cell.classList.toggle("number", numeric.has(column));
    cell.classList.toggle("minor", minor.has(column));
    line.append(cell);
  });
  return line;
}

// What a cell is about changes with its text: its link leads there, or is gone.
function link(cell, href) {
  const now = cell.querySelector("a");
  if (now && href) { if (now.getAttribute("href") !== href) now.setAttribute("href", href); }
  else if (href) cell.replaceChildren(make("a", cell.textContent, { href }));
  else if (now) cell.replaceChildren(now.textContent);
}

function updateTable(id, rows) {
  const table = $(id);
  if (!table) return;
  const tbody = table.tBodies[0];
  const known = new Map([...tbody.rows].map((row) => [row.dataset.key, row]));
  rows.forEach((row, at) => {
    const line = known.get(row.key) ?? newLine(table, row);
    if (table.tHead.querySelector("th.acts") && !line.querySelector("td.acts")) line.append(buttons(row));
    known.delete(row.key);
    row.cells.forEach((text, column) => {
      const cell = line.cells[column];
      const place = cell.firstElementChild ?? cell;
      const shown = ISO.test(text) ? localTime(text) : text;
      if (place.textContent !== shown) { place.textContent = shown; cell.title = text; }
      link(cell, column ? row.links?.[column] : row.href);
    });
    for (const level of ["alert", "warning"]) line.classList.toggle(level, row.level === level);
    if (tbody.rows[at] !== line) tbody.insertBefore(line, tbody.rows[at] ?? null);
  });
  for (const gone of known.values()) gone.remove();
  const empty = table.parentElement.querySelector(".empty");
  if (empty) empty.hidden = rows.length > 0;
}

// ── the line at the top ─────────────────────────────────────────────────────────────────────────────────────────────
const health = $("health");
const HOME = base + "/health";

function showHealth(links, level) {
  health.className = "health " + level;
  const now = links.map((one) => one.says).join("\n");
  if ([...health.children].map((one) => one.textContent).join("\n") === now) return;
  health.replaceChildren(...links.map((one) => make("a", one.says, { href: one.href, class: one.level ?? null })));
}

const BEAT = 5000;
let known = null;
let heard = Date.now(), beat = BEAT;

// The server says something at every look it takes. After two that are missing, what the page shows is the past.
function listen(said) {
  const now = Date.now();
  beat = Math.max(BEAT, now - heard);
  heard = now;
  if (said.health) known = said.health;
  body.classList.remove("stale");
  if (known) showHealth(known.length ? known : [{ says: "All is well", href: HOME }], known.map((one) => one.level).sort()[0] ?? "good");
}

function watch() {
  if (Date.now() - heard < 2 * beat) return;
  body.classList.add("stale");
  showHealth([{ says: `No data since ${new Date(heard).toLocaleTimeString([], { hour12: false })}`, href: HOME }], "unknown");
}

function update(said) {
  if (document.querySelector(".commands") && (said.tables?.topics?.length || said.tables?.queues?.length)) location.reload();
  listen(said);
  for (const [id, text] of Object.entries(said.texts ?? {})) {
    const element = $(id);
    if (element && element.textContent !== text) element.textContent = text;
  }
  for (const [id, alert] of Object.entries(said.alerts ?? {})) {
    document.querySelector(`[data-tile="${CSS.escape(id)}"]`)?.classList.toggle("alert", alert);
  }
  for (const [id, rows] of Object.entries(said.tables ?? {})) updateTable(id, rows);
  if (said.tables) markFound();
  dispatchEvent(new Event("penstock-live"));
}

export function follow(path, onMessage) {
  const source = new EventSource(path);
  const state = $("state");
  source.onopen = () => { state.textContent = "live"; state.classList.remove("lost"); };
  source.onerror = () => { state.textContent = "reconnecting…"; state.classList.add("lost"); };
  source.onmessage = (message) => onMessage(JSON.parse(message.data));
  addEventListener("pagehide", () => source.close());
  return source;
}

for (const cell of document.querySelectorAll("table.live td")) {
  if (!cell.firstElementChild && ISO.test(cell.textContent)) cell.textContent = localTime(cell.textContent);
}
if (body.dataset.live) {
  follow(body.dataset.live, update);
  setInterval(watch, 1000);
}
markFound();
