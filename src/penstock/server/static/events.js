// Lists of events: the tail that follows a topic, and the event that is opened beside its list.
import { $, base, localTime, localTimes, make, tell } from "./core.js";
import { follow } from "./live.js";
import { dress } from "./payload.js";

const MOST_SHOWN = 200;
const tail = $("tail");

function shortPayload(event) {
  if (event.binary) return `${event.payload.length} characters of base64`;
  const text = JSON.stringify(event.payload) ?? "";
  return text.length > 300 ? text.slice(0, 300) + "…" : text;
}

function eventItem(event) {
  const item = make("li", null, { "data-seq": event.seq });
  const href = `${base}/topics/${encodeURIComponent(event.topic)}/events/${event.seq}`;
  const time = make("time", localTime(event.recorded_at, true), { datetime: event.recorded_at, title: event.recorded_at });
  item.append(make("a", "#" + event.seq, { href, class: "seq" }), time, make("span", event.kind, { class: "kind", title: event.kind }));
  if (event.key !== undefined) item.append(make("span", event.key, { class: "key", title: event.key }));
  for (const tag of event.tags ?? []) item.append(make("span", tag, { class: "tag", title: tag }));
  item.append(make("code", shortPayload(event), { class: "payload" }));
  return item;
}

// ── the inspector ───────────────────────────────────────────────────────────────────────────────────────────────────
const inspector = $("inspector");
const narrow = matchMedia("(max-width: 900px)");
let opener = null;

// On a narrow screen an open sheet covers the page: the parts behind it take no focus and no taps.
function cover() {
  const covered = Boolean(inspector) && !inspector.hidden && narrow.matches;
  for (let part = inspector; part && part !== document.body; part = part.parentElement)
    for (const other of part.parentElement.children)
      if (other !== part && !other.matches("header, dialog, script")) other.inert = covered;
}
narrow.addEventListener("change", cover);

export function closeInspector() {
  if (!inspector || inspector.hidden) return false;
  inspector.hidden = true;
  cover();
  document.body.classList.remove("sheet-open");
  document.querySelector(".current")?.classList.remove("current");
  opener?.querySelector("a")?.focus();
  return true;
}

export async function inspect(item) {
  const link = item.querySelector("a");
  if (!inspector) { location.href = link.href; return; }
  opener = item;
  document.querySelector(".current")?.classList.remove("current");
  item.classList.add("current");
  await show(item.dataset.event ?? link.href);
}

async function show(href) {
  const address = new URL(href, location.href);
  const title = decodeURIComponent(address.pathname.slice(base.length)).replace(/^\/topics\//, "").replace("/events/", " #");
  address.searchParams.set("part", "1");
  const answer = await fetch(address);
  if (!answer.ok) { tell("That event cannot be shown: it may have been removed", true); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const article = document.importNode(page.querySelector("article"), true);
  inspector.querySelector("h2").textContent = title;
  inspector.querySelector(".inspector-body").replaceChildren(article);
  dress(article);
  const fresh = inspector.hidden;
  inspector.hidden = false;
  cover();
  document.body.classList.add("sheet-open");
  if (fresh && narrow.matches) inspector.querySelector("h2").focus();
}

inspector?.querySelector("[data-close]").addEventListener("click", closeInspector);
// Older and newer stay beside the list.
inspector?.addEventListener("click", (click) => {
  const step = click.target.closest("[data-step]");
  if (!step || click.metaKey || click.ctrlKey || click.shiftKey) return;
  click.preventDefault();
  show(step.href);
});

document.addEventListener("click", (click) => {
  const item = click.target.closest(".events li, tr[data-event]");
  if (!item || click.metaKey || click.ctrlKey || click.shiftKey || click.target.closest("input, button, label, summary")) return;
  if (item.matches("tr") && click.target.closest("td")?.querySelector("input")) return;
  click.preventDefault();
  inspect(item);
});

// ── the tail ────────────────────────────────────────────────────────────────────────────────────────────────────────
let paused = false;
export function pause(now = !paused) {
  const button = $("pause");
  if (!tail || !button) return;
  paused = now;
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
  for (const name of ["kind", "key", "key_prefix", "scope", "tag", "where"]) {
    for (const value of query.getAll(name)) if (value.trim()) wanted.append(name, value.trim());
  }
  const newest = tail.firstElementChild?.dataset.seq;
  if (tail.dataset.paused) pause(true);
  if ($("filter-problem").hidden) {
    wanted.set("after", tail.dataset.paused ? "latest" : newest ?? tail.dataset.after);
    const text = query.get("text")?.trim().toLowerCase();
    follow(`${base}/v1/topics/${encodeURIComponent(tail.dataset.topic)}/live?${wanted}`, (event) => {
      if (text && !JSON.stringify(event.payload).toLowerCase().includes(text)) return;
      waiting.push(event);
      if (waiting.length > 2 * MOST_SHOWN) waiting.splice(0, waiting.length - MOST_SHOWN);
      drain();
    });
  }
  $("pause").addEventListener("click", () => pause());
}
localTimes(document);
