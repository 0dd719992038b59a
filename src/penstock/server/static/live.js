// Keeps tiles, tables and the line at the top as the server says they are.
import { $, ISO, base, body, localTime, make } from "./core.js";

function buttons(row) {
  const cell = make("td", null, { class: "acts" });
  for (const one of row.buttons ?? []) {
    cell.append(make("button", one.label, {
      type: "button", class: "plain small", "data-act": one.act, "data-fields": JSON.stringify(one.fields),
      "aria-label": `${one.label} ${row.cells[0]}`,
    }));
  }
  return cell;
}

function updateTable(id, rows) {
  const table = $(id);
  if (!table) return;
  const numeric = new Set((table.dataset.numeric || "").split(",").filter(Boolean).map(Number));
  const tbody = table.tBodies[0];
  const known = new Map([...tbody.rows].map((row) => [row.dataset.key, row]));
  rows.forEach((row, at) => {
    let line = known.get(row.key);
    if (!line) {
      line = make("tr", null, { "data-key": row.key });
      row.cells.forEach((_, column) => {
        const cell = make("td", null, { class: numeric.has(column) ? "number" : null });
        if (column === 0 && row.href) cell.append(make("a", "", { href: row.href }));
        line.append(cell);
      });
    }
    if (table.tHead.querySelector("th.acts") && !line.querySelector("td.acts")) line.append(buttons(row));
    known.delete(row.key);
    row.cells.forEach((text, column) => {
      const cell = line.cells[column];
      const place = cell.firstElementChild ?? cell;
      const shown = ISO.test(text) ? localTime(text) : text;
      if (place.textContent !== shown) { place.textContent = shown; cell.title = text; }
    });
    line.classList.toggle("alert", Boolean(row.alert));
    if (tbody.rows[at] !== line) tbody.insertBefore(line, tbody.rows[at] ?? null);
  });
  for (const gone of known.values()) gone.remove();
  const empty = table.parentElement.querySelector(".empty");
  if (empty) empty.hidden = rows.length > 0;
}

function showHealth(links) {
  const health = $("health");
  const shown = links.length ? links : [{ says: "All is well", href: base + "/health" }];
  const now = shown.map((one) => one.says).join("\n");
  if ([...health.children].map((one) => one.textContent).join("\n") === now) return;
  health.className = "health " + (links.length ? "bad" : "good");
  health.replaceChildren(...shown.map((one) => make("a", one.says, { href: one.href })));
}

function update(said) {
  if (said.health) showHealth(said.health);
  for (const [id, text] of Object.entries(said.texts ?? {})) {
    const element = $(id);
    if (element && element.textContent !== text) element.textContent = text;
  }
  for (const [id, alert] of Object.entries(said.alerts ?? {})) {
    document.querySelector(`[data-tile="${CSS.escape(id)}"]`)?.classList.toggle("alert", alert);
  }
  for (const [id, rows] of Object.entries(said.tables ?? {})) updateTable(id, rows);
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
if (body.dataset.live) follow(body.dataset.live, update);
