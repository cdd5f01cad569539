// What htmx does not reach: hiding a passage, a server that is gone, text that would be lost.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-close]");
  if (!button) return;
  const passage = button.closest(".passage");
  const opener = document.querySelector(`[aria-controls="${passage.id}"]`);
  passage.replaceChildren();
  if (opener) opener.focus();
});

function say(text) {
  const notice = document.createElement("p");
  notice.className = "notice bad";
  notice.textContent = text;
  const status = document.getElementById("status");
  status.querySelectorAll(".notice").forEach((old) => old.remove());
  status.append(notice);
  status.dataset.gone = "yes";
}

document.addEventListener("htmx:sendError", () => {
  if (document.getElementById("status").dataset.gone) return;
  say("The inspector does not answer: start it again, and this page continues.");
});

document.addEventListener("htmx:afterOnLoad", () => {
  const status = document.getElementById("status");
  if (!status || !status.dataset.gone) return;
  delete status.dataset.gone;
  status.querySelectorAll(".notice").forEach((old) => old.remove());
});

const guarded = document.querySelector("form[data-guarded]");
if (guarded) {
  const text = guarded.querySelector("textarea");
  const before = text.value;
  let storing = false;
  guarded.addEventListener("submit", () => { storing = true; });
  window.addEventListener("beforeunload", (event) => {
    if (!storing && text.value !== before) event.preventDefault();
  });
}
