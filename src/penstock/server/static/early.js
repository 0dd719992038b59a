// Loaded before the page is shown: a button pressed before the scripts are there is pressed again when they are.
(() => {
  let pressed = null;
  const remember = (click) => {
    const button = click.target.closest("[data-act], form[data-act] button");
    if (!button || button.matches("form")) return;
    click.preventDefault();
    pressed = button;
  };
  document.addEventListener("click", remember, true);
  addEventListener("penstock-ready", () => {
    document.removeEventListener("click", remember, true);
    pressed?.click();
  }, { once: true });
})();
