// What every part of the page uses: elements, times, telling and asking, requests. Everything that comes from data is set
// as text, never as markup; the parts of pages that the server renders are escaped there.

export const body = document.body;
export const base = body.dataset.base || "";
export const $ = (id) => document.getElementById(id);

export function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  return element;
}

// ── times ───────────────────────────────────────────────────────────────────────────────────────────────────────────
export const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

// In the reader's zone. In tables, today's date goes without saying; an event has its date always.
export function localTime(iso, dated = false) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime()) || moment.getFullYear() > 9000) return iso;
  const part = moment.getMilliseconds(), today = new Date();
  const clock = moment.toLocaleTimeString([], { hour12: false }) + (part ? "." + String(part).padStart(3, "0") : "");
  if (!dated && moment.toDateString() === today.toDateString()) return clock;
  const year = moment.getFullYear() === today.getFullYear() ? undefined : "numeric";
  return moment.toLocaleDateString([], { year, month: "short", day: "numeric" }) + " " + clock;
}

// How far the reader's zone is from UTC at a moment.
function offset(moment) {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" }).formatToParts(moment);
  return parts.find((part) => part.type === "timeZoneName").value.replace("GMT", "UTC").replace(/\+0$/, "");
}

export function zone() {
  const named = Intl.DateTimeFormat().resolvedOptions().timeZone, now = offset(new Date());
  return now === named ? named : `${named} (${now})`;
}

export function localTimes(within) {
  for (const time of within.querySelectorAll("time")) {
    const shown = localTime(time.dateTime, true), zoned = time.closest("article") && shown !== time.dateTime;
    time.title = time.dateTime;
    time.textContent = zoned ? `${shown} ${offset(new Date(time.dateTime))}` : shown;
  }
}

// ── what a search found ─────────────────────────────────────────────────────────────────────────────────────────────
export function markFound() {
  const main = $("content"), sought = main?.dataset.found?.toLowerCase();
  if (!sought || !CSS.highlights) return;
  const ranges = [];
  const walk = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.toLowerCase();
    for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + sought.length)) {
      const range = new Range();
      range.setStart(walk.currentNode, at);
      range.setEnd(walk.currentNode, at + sought.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

// ── light and dark ──────────────────────────────────────────────────────────────────────────────────────────────────
export function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("penstock-theme", root.dataset.theme);
  dispatchEvent(new Event("penstock-theme"));
}

// ── telling and asking ──────────────────────────────────────────────────────────────────────────────────────────────
let toastTimer;
export function tell(text, bad = false) {
  const toast = $("toast");
  toast.textContent = text;
  toast.className = bad ? "bad" : "";
  toast.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { toast.hidden = true; }, bad ? 8000 : 4000);
}

export function tellAfterReload(text) {
  sessionStorage.setItem("penstock-said", text);
  location.reload();
}

// A danger is asked for in red; of what destroys much, the name has to be typed.
export function ask({ question, danger, typed }, yes) {
  const dialog = $("confirm"), button = $("confirm-yes"), name = $("confirm-name");
  $("question").textContent = question;
  button.textContent = yes;
  button.classList.toggle("danger", Boolean(danger));
  $("confirm-typed").hidden = !typed;
  $("confirm-typed").querySelector("code").textContent = typed ?? "";
  name.value = "";
  button.disabled = Boolean(typed);
  name.oninput = () => { button.disabled = name.value.trim() !== typed; };
  name.onkeydown = (press) => { if (press.key === "Enter" && !button.disabled) button.click(); };
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
