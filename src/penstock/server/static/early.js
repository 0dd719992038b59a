// Loaded before the page is shown: a button or an event pressed before the scripts are there is pressed again when they
// are, or when it is clear that they do not come.
(() => {
  let pressed = null;
  const remember = (click) => {
    const target = click.target.closest("[data-act], form[data-act] button, .events li, tr[data-event]");
    if (!target || target.matches("form") || click.metaKey || click.ctrlKey || click.shiftKey) return;
    if (target.matches("li, tr")) {
      if (click.target.closest("input, button, label, summary")) return;
      if (click.target.closest("td")?.querySelector("input")) return;
    }
    click.preventDefault();
    pressed = target.matches("li, tr") ? click.target.closest("a") ?? target : target;
  };
  const ready = () => {
    document.removeEventListener("click", remember, true);
    pressed?.click();
    pressed = null;
  };
  document.addEventListener("click", remember, true);
  addEventListener("penstock-ready", ready, { once: true });
  addEventListener("load", ready, { once: true });
})();
