// Does what forms and buttons ask for: the server says what an act would touch, the person says yes, the server does it.
import { ask, base, tell, tellAfterReload } from "./core.js";

async function perform(act, fields, preview) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ fields, preview }) };
  let answer, said;
  try {
    answer = await fetch(`${base}/acts/${act}`, request);
    said = await answer.json();
  } catch {
    throw new Error(preview ? "The server does not answer" : "No answer came: whether it was done is not known. Load this page again and look");
  }
  if (!answer.ok) throw new Error(said.detail || said.error || answer.statusText);
  return said;
}

// The server words the question; the button that was pressed says what yes means.
async function carryOut(act, fields, yes, options = {}) {
  try {
    const asked = await perform(act, fields, true);
    if (asked.question && !await ask(asked, yes)) return;
    const { says } = await perform(act, fields, false);
    if (options.stay) { tell(says); return; }
    if (options.then) { sessionStorage.setItem("penstock-said", says); location.href = options.then; return; }
    tellAfterReload(says);
  } catch (error) { tell(error.message, true); }
}

function fieldsOf(form, submitter) {
  const fields = {};
  for (const [name, value] of new FormData(form, submitter)) {
    if (name === "ids") (fields.ids ??= []).push(value);
    else fields[name] = value;
  }
  return fields;
}

document.addEventListener("submit", (submit) => {
  const form = submit.target.closest("form[data-act]");
  if (!form) return;
  submit.preventDefault();
  const act = submit.submitter?.dataset.act ?? form.dataset.act;
  const fields = fieldsOf(form, submit.submitter);
  carryOut(act, fields, submit.submitter?.textContent ?? "Yes", { stay: "stay" in form.dataset, then: form.dataset.then });
});

document.addEventListener("click", (click) => {
  const button = click.target.closest("button[data-act][data-fields]");
  if (!button) return;
  click.preventDefault();
  carryOut(button.dataset.act, JSON.parse(button.dataset.fields), button.textContent, { then: button.dataset.then });
});

// ── typing JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────
function check(field) {
  const problem = field.closest("form").querySelector("[data-json-problem]");
  let wrong = "";
  if (field.value.trim()) try { JSON.parse(field.value); } catch (error) { wrong = error.message; }
  field.setCustomValidity(wrong);
  field.setAttribute("aria-invalid", String(Boolean(wrong)));
  if (problem) { problem.textContent = wrong; problem.hidden = !wrong; }
}
document.addEventListener("input", (input) => { if (input.target.matches("[data-json]")) check(input.target); });

document.addEventListener("change", (change) => {
  const choice = change.target;
  if (choice.matches("[data-template]")) {
    const form = choice.closest("form");
    const picked = choice.selectedOptions[0];
    const field = form.querySelector("[data-json]");
    field.value = choice.value;
    check(field);
    if (picked.dataset.kind && form.elements.kind) form.elements.kind.value = picked.dataset.kind;
    if (picked.dataset.key !== undefined && form.elements.key) form.elements.key.value = picked.dataset.key;
  }
  if (choice.matches("thead input[type=checkbox]")) {
    for (const box of choice.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = choice.checked;
  }
});
