// What the explorers share: their data, SVG, controls and a step that can be played.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const control = (name) => document.querySelector(`.explorer [name="${name}"]`);
const value = (name) => (control(name).type === "range" ? Number(control(name).value) : control(name).value);
const say = (text) => { document.querySelector(".say").textContent = text; };

function svg(name, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, given] of Object.entries(attributes)) element.setAttribute(key, given);
  element.textContent = text;
  return element;
}

function facts(rows) {
  const list = document.getElementById("facts");
  list.replaceChildren(...Object.entries(rows).map(([name, text]) => {
    const row = document.createElement("div"), term = document.createElement("dt"), said = document.createElement("dd");
    [term.textContent, said.textContent] = [name, text];
    row.append(term, said);
    return row;
  }));
}

// Diagonal lines, for what holds a place and does nothing.
const hatch = () => {
  const pattern = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  pattern.append(svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" }));
  const defs = svg("defs");
  defs.append(pattern);
  return defs;
};

// Draws anew at every move. `steps` says how many there are now; the last setting stays until somebody changes it.
function explore(draw, steps, start = "last") {
  const step = control("step");
  let timer = null;

  function show() {
    step.max = steps();
    for (const input of document.querySelectorAll(".explorer input[type=range]"))
      input.parentElement.querySelector("output").textContent = input.value + (input.name === "step" ? ` of ${input.max}` : "");
    draw();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    control("play").textContent = "Play";
  }
  function move(by) {
    step.value = Number(step.value) + by;
    show();
    if (step.value === step.max) stop();
  }
  control("back").addEventListener("click", () => move(-1));
  control("next").addEventListener("click", () => move(1));
  control("play").addEventListener("click", () => {
    if (timer) return stop();
    if (step.value === step.max) step.value = step.min;
    control("play").textContent = "Pause";
    timer = setInterval(() => move(1), Math.max(80, Math.min(700, 9000 / steps())));
  });
  step.addEventListener("input", show);
  document.querySelector(".controls").addEventListener("input", () => {
    stop();
    const end = step.value === step.max;
    step.max = steps();
    if (end) step.value = step.max;
    show();
  });
  step.max = steps();
  step.value = start === "last" ? step.max : start;
  show();
}
