// The gallery and the claims: an article is shown when it fits all that was chosen. What was chosen stands in the address.
"use strict";

const form = document.querySelector(".filters");
const articles = [...document.querySelectorAll("#list > article")];

function fits(article, chosen) {
  return Object.entries(chosen).every(([name, value]) => name === "search"
    ? value.toLowerCase().split(/\s+/).every((word) => (article.id + " " + article.textContent).toLowerCase().includes(word))
    : (article.dataset[name] || "").split("|").includes(value));
}

function filter() {
  const chosen = Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
  for (const article of articles) article.hidden = !fits(article, chosen);
  const shown = articles.filter((article) => !article.hidden).length;
  form.querySelector("output").textContent = `${shown} of ${articles.length}`;
  const query = new URLSearchParams(chosen).toString();
  history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash);
}

for (const [name, value] of new URLSearchParams(location.search)) if (form.elements[name]) form.elements[name].value = value;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
filter();
if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
