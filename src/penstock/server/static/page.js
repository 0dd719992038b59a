// Keeps a page fresh, opens events, and carries out what its forms ask for. Everything that comes from data is set as
// text, never as markup.
"use strict";

const body = document.body;
const base = body.dataset.base || "";
const $ = (id) => document.getElementById(id);

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  return element;
}

// ── light and dark ──────────────────────────────────────────────────────────────────────────────────────────────────
const remembered = localStorage.getItem("penstock-theme");
if (remembered) document.documentElement.dataset.theme = remembered;

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("penstock-theme", root.dataset.theme);
  dispatchEvent(new Event("penstock-theme"));
}
$("theme")?.addEventListener("click", switchTheme);

// ── times ───────────────────────────────────────────────────────────────────────────────────────────────────────────
const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

function localTime(iso) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime()) || moment.getFullYear() > 9000) return iso;
  const clock = moment.toLocaleTimeString([], { hour12: false }) + "." + String(moment.getMilliseconds()).padStart(3, "0");
  return moment.toDateString() === new Date().toDateString() ? clock : moment.toLocaleDateString() + " " + clock;
}
for (const time of document.querySelectorAll("time")) {
  time.title = time.dateTime;
  time.textContent = localTime(time.dateTime);
}

// ── telling and asking ──────────────────────────────────────────────────────────────────────────────────────────────
let toastTimer;
function tell(text, bad = false) {
  const toast = $("toast");
  toast.textContent = text;
  toast.className = bad ? "bad" : "";
  toast.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { toast.hidden = true; }, bad ? 8000 : 4000);
}

function ask(question, yes) {
  const dialog = $("confirm");
  $("question").textContent = question;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function send(method, path, document_) {
  const answer = await fetch(base + "/v1" + path, {
    method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(document_ ?? {}),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.detail || said.error || answer.statusText);
  return said;
}

// ── tables, tiles, charts that are kept fresh ───────────────────────────────────────────────────────────────────────
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
    known.delete(row.key);
    row.cells.forEach((text, column) => {
      const cell = line.cells[column];
      const place = cell.firstElementChild ?? cell;
      const shown = ISO.test(text) ? localTime(text) : text;
      if (place.textContent !== shown) place.textContent = shown;
    });
    line.classList.toggle("alert", Boolean(row.alert));
    if (tbody.rows[at] !== line) tbody.insertBefore(line, tbody.rows[at] ?? null);
  });
  for (const gone of known.values()) gone.remove();
  const empty = table.parentElement.querySelector(".empty");
  if (empty) empty.hidden = rows.length > 0;
}

for (const cell of document.querySelectorAll("table.live td")) {
  if (!cell.firstElementChild && ISO.test(cell.textContent)) cell.textContent = localTime(cell.textContent);
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

function follow(path, onMessage) {
  const source = new EventSource(path);
  const state = $("state");
  source.onopen = () => { state.textContent = "live"; state.classList.remove("lost"); };
  source.onerror = () => { state.textContent = "reconnecting…"; state.classList.add("lost"); };
  source.onmessage = (message) => onMessage(JSON.parse(message.data));
  addEventListener("pagehide", () => source.close());
  return source;
}
if (body.dataset.live) follow(body.dataset.live, update);

// ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────
const MOST_SHOWN = 200;
const tail = $("tail");

function shortPayload(event) {
  if (event.binary) return `${event.payload.length} characters of base64`;
  const text = JSON.stringify(event.payload) ?? "";
  return text.length > 300 ? text.slice(0, 300) + "…" : text;
}

function eventItem(event) {
  const item = make("li", null, { "data-seq": event.seq, tabindex: "0" });
  const href = `${base}/topics/${encodeURIComponent(event.topic)}/events/${event.seq}`;
  const time = make("time", localTime(event.recorded_at), { datetime: event.recorded_at, title: event.recorded_at });
  item.append(make("a", "#" + event.seq, { href, class: "seq" }), time, make("span", event.kind, { class: "kind" }));
  if (event.key !== undefined) item.append(make("span", event.key, { class: "key" }));
  item.append(make("code", shortPayload(event), { class: "payload" }));
  return item;
}

async function inspect(item) {
  const link = item.querySelector("a");
  const inspector = $("inspector");
  if (!inspector) { location.href = link.href; return; }
  const answer = await fetch(link.href.replace("/topics/", "/v1/topics/"));
  const event = await answer.json();
  if (!answer.ok) { tell(event.detail, true); return; }
  document.querySelector("li.current")?.classList.remove("current");
  item.classList.add("current");
  const fields = make("dl");
  const add = (name, value, href) => {
    const shown = make("dd", href ? null : value);
    if (href) shown.append(make("a", value, { href }));
    fields.append(make("dt", name), shown);
  };
  add("Kind", event.kind);
  add("Id", event.id);
  if (event.key !== undefined) add("Key", event.key);
  if (event.scope !== undefined) add("Scope", event.scope);
  add("Recorded", localTime(event.recorded_at));
  add("Occurred", localTime(event.occurred_at));
  const correlation = event.correlation_id ?? event.id;
  add("Causes", "what caused what", `${base}/graph/${encodeURIComponent(correlation)}`);
  if (event.causation_id !== undefined) add("Caused by", event.causation_id);
  for (const [name, value] of Object.entries(event.headers ?? {})) add("Header " + name, value);
  const close = make("button", "Close", { type: "button", class: "plain" });
  close.addEventListener("click", () => { inspector.hidden = true; item.focus(); });
  const payload = make("pre", event.binary ? event.payload : JSON.stringify(event.payload, null, 2));
  inspector.replaceChildren(make("h3", `${event.topic} #${event.seq}`), fields, payload, close);
  inspector.hidden = false;
}

document.addEventListener("click", (click) => {
  const item = click.target.closest(".events li");
  if (!item || click.metaKey || click.ctrlKey || click.shiftKey) return;
  click.preventDefault();
  inspect(item);
});

let paused = false;
function pause(now) {
  paused = now;
  const button = $("pause");
  if (!button) return;
  button.textContent = paused ? "Go on" : "Pause";
  button.setAttribute("aria-pressed", String(paused));
  if (!paused) drain();
}

const waiting = [];
let drawing = false;
function drain() {
  if (drawing || paused) return;
  drawing = true;
  // At most a few times a second, however fast events come: a person reads no faster.
  setTimeout(() => {
    drawing = false;
    if (paused || !waiting.length) return;
    const items = waiting.splice(0).slice(-MOST_SHOWN).reverse().map(eventItem);
    tail.prepend(...items);
    while (tail.children.length > MOST_SHOWN) tail.lastElementChild.remove();
  }, 100);
}

if (tail) {
  const query = new URLSearchParams(location.search);
  const wanted = new URLSearchParams();
  for (const name of ["kind", "key", "where"]) if (query.get(name)) wanted.set(name, query.get(name));
  const newest = tail.firstElementChild?.dataset.seq;
  if (tail.dataset.paused) pause(true);
  if ($("filter-problem").hidden) {
    wanted.set("after", tail.dataset.paused || !newest ? "latest" : newest);
    follow(`${base}/v1/topics/${encodeURIComponent(tail.dataset.topic)}/live?${wanted}`, (event) => {
      waiting.push(event);
      if (waiting.length > 2 * MOST_SHOWN) waiting.splice(0, waiting.length - MOST_SHOWN);
      drain();
    });
  }
  $("pause").addEventListener("click", () => pause(!paused));
}

// ── seek, redrive, purge ────────────────────────────────────────────────────────────────────────────────────────────
$("seek")?.addEventListener("submit", async (submit) => {
  submit.preventDefault();
  const form = submit.target;
  const given = Object.fromEntries(new FormData(form));
  const topic = form.dataset.topic;
  const where = { start: "the start", end: "the end" }[given.to] ?? `${given.to} ${given.value}`;
  if (!await ask(`Move ${given.consumer} to ${where} of ${topic}?`, "Seek")) return;
  const change = { seek: true };
  if (given.to === "position") change.position = Number(given.value);
  else if (given.to === "time") change.time = given.value;
  else change.to = given.to;
  try {
    const path = `/topics/${encodeURIComponent(topic)}/cursors/${encodeURIComponent(given.consumer)}`;
    const said = await send("PUT", path, change);
    tell(`${said.consumer} is at ${said.position}; ${said.lag} events lie ahead`);
  } catch (error) { tell(error.message, true); }
});

for (const form of document.querySelectorAll("form.redrive")) {
  const boxes = () => [...form.querySelectorAll("tbody input[type=checkbox]")];
  form.querySelector("thead input")?.addEventListener("change", (change) => {
    for (const box of boxes()) box.checked = change.target.checked;
  });
  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    const all = submit.submitter?.value === "all";
    const ids = all ? undefined : boxes().filter((box) => box.checked).map((box) => box.value);
    if (ids && !ids.length) { tell("choose some messages first", true); return; }
    const path = `/queues/${encodeURIComponent(form.dataset.queue)}/redrive`;
    try {
      const { would_redrive: count } = await send("POST", path, { ids, dry_run: true });
      if (!await ask(`Send ${count} messages back to their queue, with a fresh budget?`, "Send back")) return;
      const { redriven } = await send("POST", path, { ids });
      sessionStorage.setItem("penstock-said", `${redriven} messages were sent back`);
      location.reload();
    } catch (error) { tell(error.message, true); }
  });
}
const said = sessionStorage.getItem("penstock-said");
if (said) { sessionStorage.removeItem("penstock-said"); tell(said); }

$("purge")?.addEventListener("submit", async (submit) => {
  submit.preventDefault();
  const queue = submit.target.dataset.queue;
  if (!await ask(`Remove every message of ${queue}, also those in flight? This cannot be undone.`, "Remove")) return;
  try {
    const { removed } = await send("POST", `/queues/${encodeURIComponent(queue)}/purge`);
    sessionStorage.setItem("penstock-said", `${removed} messages were removed`);
    location.reload();
  } catch (error) { tell(error.message, true); }
});

// ── the keyboard ────────────────────────────────────────────────────────────────────────────────────────────────────
function rows() {
  return [...document.querySelectorAll("table.live tbody tr, .events li")].filter((row) => row.offsetParent !== null);
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("current"));
  all[at]?.classList.remove("current");
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
  next.classList.add("current");
  next.scrollIntoView({ block: "nearest" });
}

let prefix = "";
document.addEventListener("keydown", (press) => {
  if ($("help").open) {
    // The list of keys is there to be tried: a key closes it and does what it says.
    if (["Escape", "Tab", "Enter", " ", "Shift"].includes(press.key)) return;
    $("help").close();
  }
  const typing = document.activeElement?.closest("input, select, textarea, dialog[open]");
  if (press.key === "Escape" && typing?.id === "search") typing.blur();
  if (typing || press.ctrlKey || press.metaKey || press.altKey) return;
  const key = prefix + press.key;
  prefix = "";
  const current = document.querySelector("tr.current, li.current") ?? press.target.closest(".events li");
  switch (key) {
    case "/": press.preventDefault(); $("search").focus(); break;
    case "?": $("help").showModal(); break;
    case "t": switchTheme(); break;
    case "p": if (tail) pause(!paused); break;
    case "j": step(1); break;
    case "k": step(-1); break;
    case "g": prefix = "g"; break;
    case "go": location.href = base + "/"; break;
    case "gp": location.href = base + "/pipelines"; break;
    case "gb": location.href = base + "/buffers"; break;
    case "Enter":
      if (current?.matches("li")) inspect(current);
      else current?.querySelector("a")?.click();
      break;
    case "Escape": if ($("inspector")) $("inspector").hidden = true; break;
  }
});
$("help-button")?.addEventListener("click", () => $("help").showModal());
