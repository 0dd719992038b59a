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

export function localTime(iso) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime()) || moment.getFullYear() > 9000) return iso;
  const part = moment.getMilliseconds(), today = new Date();
  const clock = moment.toLocaleTimeString([], { hour12: false }) + (part ? "." + String(part).padStart(3, "0") : "");
  if (moment.toDateString() === today.toDateString()) return clock;
  const year = moment.getFullYear() === today.getFullYear() ? undefined : "numeric";
  return moment.toLocaleDateString([], { year, month: "short", day: "numeric" }) + " " + clock;
}

export function localTimes(within) {
  for (const time of within.querySelectorAll("time")) {
    time.title = time.dateTime;
    time.textContent = localTime(time.dateTime);
  }
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

export function ask(question, yes) {
  const dialog = $("confirm");
  $("question").textContent = question;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
