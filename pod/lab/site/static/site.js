// Light or dark, and the questions of a chapter: both are remembered in this browser and nowhere else.
"use strict";

const remember = (key, value) => { try { localStorage.setItem(key, value); } catch { /* a private window */ } };
const recall = (key) => { try { return localStorage.getItem(key); } catch { return null; } };

const isDark = () => (document.documentElement.dataset.theme
  || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

document.getElementById("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  remember("theme", theme);
});

// The stutter once more: an element that is put back begins its animation anew.
document.getElementById("again")?.addEventListener("click", () => {
  for (const group of document.querySelectorAll(".sweep")) group.replaceWith(group.cloneNode(true));
});

// An answer opens what was said about the option that was taken.
function take(question, number) {
  [...question.querySelectorAll("button")].forEach((button, i) => button.setAttribute("aria-pressed", i === number));
  const answer = document.querySelector(`.answer[data-question="${question.dataset.question}"]`);
  answer?.querySelectorAll("details").forEach((said, i) => { said.open = i === number; });
}

for (const question of document.querySelectorAll(".question")) {
  const key = `question ${question.dataset.question}`;
  [...question.querySelectorAll("button")].forEach((button, i) => button.addEventListener("click", () => {
    take(question, i);
    remember(key, i);
  }));
  if (recall(key) !== null) take(question, Number(recall(key)));
}
