// What htmx does not reach: opening and hiding a passage, a server that is gone, text that would be lost.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-close]");
  if (!button) return;
  const passage = button.closest(".passage");
  const opener = openers(passage).find((one) => one.getAttribute("aria-expanded") === "true");
  passage.replaceChildren();
  expand(passage, null);
  if (opener) opener.focus();
});

function openers(passage) {
  return [...document.querySelectorAll(`[aria-controls="${passage.id}"]`)];
}

function expand(passage, opener) {
  openers(passage).forEach((one) => one.setAttribute("aria-expanded", String(one === opener)));
}

// A passage opens with its marked words in the middle, and all of it in view.
document.addEventListener("htmx:afterSwap", (event) => {
  const passage = event.target.closest(".passage");
  if (!passage) return;
  expand(passage, event.detail.requestConfig.elt);
  const figure = passage.querySelector("figure");
  const text = passage.querySelector("blockquote");
  const mark = passage.querySelector("mark");
  figure.focus({ preventScroll: true });
  if (mark) {
    const above = mark.getBoundingClientRect().top - text.getBoundingClientRect().top;
    const room = text.clientHeight - mark.offsetHeight;
    text.scrollTop += above - Math.max(room / 2, 24);
  }
  figure.scrollIntoView({ block: "nearest" });
  if (mark) mark.scrollIntoView({ block: "nearest" });
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
