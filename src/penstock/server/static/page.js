// The script of every page: it brings the parts together.
import { $, switchTheme, tell, zone } from "./core.js";
import "./live.js";
import "./payload.js";
import "./events.js";
import "./acts.js";
import "./keyboard.js";

const remembered = localStorage.getItem("penstock-theme");
if (remembered) document.documentElement.dataset.theme = remembered;
if ($("zone")) $("zone").textContent = zone();
$("theme")?.addEventListener("click", switchTheme);

const said = sessionStorage.getItem("penstock-said");
if (said) { sessionStorage.removeItem("penstock-said"); tell(said); }

dispatchEvent(new Event("penstock-ready"));
