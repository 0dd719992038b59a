// Everything that can be clicked can be reached by keys.
import { $, base, switchTheme } from "./core.js";
import { closeInspector, inspect, pause } from "./events.js";

function rows() {
  const all = document.querySelectorAll("table.live tbody tr, tr[data-event], .events li");
  return [...all].filter((row) => row.offsetParent !== null);
}

function turned() { return location.hash.length > 1 ? $(decodeURIComponent(location.hash.slice(1))) : null; }

// To the page before or after, of the table that a row is chosen in, that was turned over last, or of the first one.
function turn(way) {
  const table = document.querySelector("tr.current, li.current") ?? turned();
  (table?.closest("section") ?? document).querySelector(`.pager a[rel=${way}]`)?.click();
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("current"));
  all[at]?.classList.remove("current");
  // Who has just turned a page over goes on in that table.
  const first = Math.max(0, all.findIndex((row) => turned()?.contains(row)));
  const next = all[at < 0 ? first : Math.max(0, Math.min(all.length - 1, at + by))];
  next.classList.add("current");
  next.scrollIntoView({ block: "nearest" });
  // With an event open beside the list, the keys leaf through it.
  if (!$("inspector")?.hidden && next.matches(".events li, tr[data-event]")) inspect(next);
}

const PAGES = { go: "/", gt: "/topics", gq: "/queues", gw: "/workers", gs: "/schedules", gp: "/pipelines", gb: "/buffers", gh: "/health" };
let prefix = "";
document.addEventListener("keydown", (press) => {
  if ($("help")?.open) {
    // The list of keys is there to be tried: a key closes it and does what it says.
    if (["Escape", "Tab", "Enter", " ", "Shift"].includes(press.key)) return;
    $("help").close();
  }
  const typing = document.activeElement?.closest("input, select, textarea, dialog[open]");
  if (press.key === "Escape" && typing?.id === "search") typing.blur();
  if (typing || press.ctrlKey || press.metaKey || press.altKey) return;
  const key = prefix + press.key;
  prefix = "";
  if (key in PAGES) { location.href = base + PAGES[key]; return; }
  const current = document.querySelector("tr.current, li.current");
  switch (key) {
    case "/": press.preventDefault(); $("search").focus(); break;
    case "?": $("help").showModal(); break;
    case "t": switchTheme(); break;
    case "p": pause(); break;
    case "j": step(1); break;
    case "k": step(-1); break;
    case "n": turn("next"); break;
    case "b": turn("prev"); break;
    case "g": prefix = "g"; break;
    case "Enter":
      if (press.target.closest("a, button, summary")) break;
      if (current?.matches("li, tr[data-event]")) inspect(current);
      else current?.querySelector("a")?.click();
      break;
    case "Escape": closeInspector(); break;
  }
});
$("help-button")?.addEventListener("click", () => $("help").showModal());
