// Carries out what the forms of a page ask for, after asking back.
import { $, ask, send, tell, tellAfterReload } from "./core.js";

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
      tellAfterReload(`${redriven} messages were sent back`);
    } catch (error) { tell(error.message, true); }
  });
}

$("purge")?.addEventListener("submit", async (submit) => {
  submit.preventDefault();
  const queue = submit.target.dataset.queue;
  if (!await ask(`Remove every message of ${queue}, also those in flight? This cannot be undone.`, "Remove")) return;
  try {
    const { removed } = await send("POST", `/queues/${encodeURIComponent(queue)}/purge`);
    tellAfterReload(`${removed} messages were removed`);
  } catch (error) { tell(error.message, true); }
});
