// Four schedulers, as pod/serving/schedulers has them, where memory never runs out; and the loop that asks them.
"use strict";

const remaining = (r) => r.prompt - r.computed;
const finished = (r) => r.generated >= r.output;
const admissible = (s) => s.waiting.length && s.running.length < s.slots;
const admit = (s) => { s.running.push(s.waiting.shift()); return s.running.at(-1); };
const whole = (request) => ({ request, tokens: request.prompt });
const batchOf = (prefills = [], decodes = [], idle = []) => ({ prefills, decodes, idle });

const SCHEDULERS = {
  static: (s) => {
    if (s.running.length) return batchOf([], s.running.filter((r) => !finished(r)), s.running.filter(finished));
    while (admissible(s)) admit(s);
    return batchOf(s.running.map(whole));
  },
  orca: (s) => {
    const batch = batchOf([], [...s.running]);
    while (admissible(s)) batch.prefills.push(whole(admit(s)));
    return batch;
  },
  vllm: (s) => {
    const prompts = [];
    while (admissible(s)) prompts.push(whole(admit(s)));
    return prompts.length ? batchOf(prompts) : batchOf([], [...s.running]);
  },
  sarathi: (s) => {
    const batch = batchOf([], s.running.filter((r) => !remaining(r)));
    const room = () => (batch.prefills.length ? 0 : s.chunk - batch.decodes.length); // one prompt an iteration
    const add = (request) => {
      const tokens = Math.min(remaining(request), room());
      if (tokens > 0) batch.prefills.push({ request, tokens });
    };
    s.running.filter(remaining).forEach(add);
    while (admissible(s) && room() > 0) add(admit(s));
    return batch;
  },
};

function complete(s, batch) {
  for (const { request, tokens } of batch.prefills) {
    request.computed += tokens;
    if (!remaining(request)) request.generated += 1;
  }
  for (const request of batch.decodes) request.generated += 1;
  if (s.scheduler !== "static" || s.running.every(finished)) s.running = s.running.filter((r) => !finished(r));
}

// The log: what ran from when to when. Arrivals are looked at after each iteration.
function serve({ scheduler, requests, slots, chunk, prompt }) {
  const coming = requests.map(([prompt, output, arrival = 0], id) => ({ id, prompt, output, arrival, computed: 0, generated: 0 }))
    .sort((a, b) => a.arrival - b.arrival || a.id - b.id);
  const s = { scheduler, slots, chunk, waiting: [], running: [] }, log = [];
  for (let now = 0; ;) {
    while (coming.length && coming[0].arrival <= now) s.waiting.push(coming.shift());
    const batch = SCHEDULERS[scheduler](s);
    if (batch.prefills.length + batch.decodes.length) {
      const tokens = batch.prefills.reduce((sum, c) => sum + c.tokens, 0), end = now + 1 + prompt * tokens;
      const event = { start: now, end, prefills: batch.prefills.map((c) => [c.request.id, c.tokens]), decodes: batch.decodes.map((r) => r.id), idle: batch.idle.map((r) => r.id) };
      complete(s, batch);
      event.out = [...batch.prefills.filter((c) => !remaining(c.request)).map((c) => c.request.id), ...event.decodes];
      log.push(event);
      now = end;
    } else if (coming.length) now = coming[0].arrival;
    else return log;
  }
}

const tokensOf = (log, id) => log.filter((event) => event.out.includes(id)).map((event) => event.end);

// Ticks: the longest wait between two tokens of one request, and the longest until a first token.
function felt(log, requests) {
  const times = requests.map((_, id) => tokensOf(log, id));
  const gaps = times.flatMap((t) => t.slice(1).map((time, i) => time - t[i]));
  return { gap: Math.max(0, ...gaps), first: Math.max(...times.map((t, id) => t[0] - (requests[id][2] || 0))) };
}

const wasted = (log, slots) => 1 - log.reduce((sum, e) => sum + e.prefills.length + e.decodes.length, 0) / (slots * log.length);

// ---------------------------------------------------------------- the page

const setup = () => ({ scheduler: value("scheduler"), requests: data.traces[value("trace")].requests, slots: value("slots"), chunk: value("chunk"), prompt: value("prompt") });
const letter = (id) => String.fromCharCode(65 + id);
const ROW = 26, MARGIN = 34;

function cell(kind, x, id, width, text = "") {
  const group = svg("g", { class: `cta ${kind}` });
  group.append(svg("rect", { x: x + 0.5, y: id * ROW + 1, width: Math.max(1, width - 1), height: ROW - 3, rx: 2 }));
  if (text && width > 9 * String(text).length) group.append(svg("text", { x: x + width / 2, y: id * ROW + 18, class: "middle" }, text));
  return group;
}

function draw() {
  const now = setup(), log = serve(now), step = value("step"), end = log.at(-1).end, { gap, first } = felt(log, now.requests);
  const scale = Math.max(14, Math.min(40, 640 / end)), height = now.requests.length * ROW + 24, width = MARGIN + end * scale + 8;
  const picture = document.getElementById("picture"), at = (time) => MARGIN + time * scale;
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.replaceChildren(hatch(), ...now.requests.map((_, id) => svg("text", { x: 4, y: id * ROW + 18 }, letter(id))),
    ...now.requests.map((_, id) => svg("rect", { class: "lane", x: MARGIN, y: id * ROW + 1, width: end * scale, height: ROW - 3 })),
    ...log.slice(0, step).flatMap((e, i) => {
      const x = at(e.start), long = (e.end - e.start) * scale, fresh = i === step - 1 ? " new" : "";
      return [...e.prefills.map(([id, tokens]) => cell(`prefill${fresh}`, x, id, long, tokens)), ...e.decodes.map((id) => cell(`decode${fresh}`, x, id, long)),
        ...e.idle.map((id) => cell("idle", x, id, long))];
    }),
    ...now.requests.map(([, , arrival = 0], id) => svg("path", { class: "arrival", d: `M${at(arrival) - 9} ${id * ROW + 6} l8 6 l-8 6 z` })),
    svg("text", { x: MARGIN, y: height - 4 }, "0"), svg("text", { x: width - 8, y: height - 4, class: "end" }, `tick ${end.toFixed(end % 1 ? 1 : 0)}`));
  say(step ? tell(log[step - 1], step) : "Nothing has run. Press ▶, or Play.");
  facts({ "iterations": log.length, "done at tick": end.toFixed(1), "slots wasted": `${(100 * wasted(log, now.slots)).toFixed(0)} %`,
    "longest gap between tokens": gap.toFixed(1), "longest wait for a first token": first.toFixed(1) });
}

function tell({ prefills, decodes, idle, start, end }, step) {
  const words = [prefills.length && `prompts ${prefills.map(([id, tokens]) => `${letter(id)} (${tokens} tokens)`).join(", ")}`,
    decodes.length && `a token for ${decodes.map(letter).join(", ")}`, idle.length && `${idle.map(letter).join(", ")} hold a slot for nothing`];
  return `Iteration ${step}, ticks ${start.toFixed(1)} to ${end.toFixed(1)}: ${words.filter(Boolean).join("; ")}.`;
}

control("trace").addEventListener("input", adopt);
function adopt() {
  const trace = data.traces[value("trace")];
  for (const key of ["slots", "chunk", "prompt"]) control(key).value = trace[key];
}

adopt();
explore(draw, () => serve(setup()).length);
