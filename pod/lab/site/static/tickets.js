// SM-aware binding, as pod/schedule/binding.py has it, on SMs that run every CTA at an even pace.
"use strict";

const PREFILL = 0, DECODE = 1, OPS = ["prefill", "decode"];
const total = (costs) => costs.reduce((a, b) => a + b, 0);

// The work of an operation, round by round, as shares of it that are done when a round begins.
function begins(costs, sms, pace) {
  const rounds = Array.from({ length: Math.ceil(costs.length / sms) }, (_, i) => total(costs.slice(i * sms, (i + 1) * sms)));
  let done = 0;
  return rounds.map((round) => {
    const begin = (pace * done) / Math.max(total(costs), 1);
    done += round;
    return begin;
  });
}

const POLICIES = {
  "50:50": (prefill, decode, sms, tickets) => Array.from({ length: tickets }, (_, t) => t % 2),
  "integer ratio": (prefill, decode, sms, tickets) => Array.from({ length: tickets }, (_, t) => {
    const [p, d] = [prefill.length, decode.length];
    if (!p || !d) return p ? PREFILL : DECODE;
    if (p <= d) return t % (Math.floor(d / p) + 1) ? DECODE : PREFILL;
    const ratio = Math.floor(p / d);
    return t % (ratio + 1) === ratio ? DECODE : PREFILL;
  }),
  proportional: (prefill, decode, sms, tickets) => {
    const starts = [...begins(prefill, sms, data.lead).map((at) => [at, PREFILL]), ...begins(decode, sms, 1).map((at) => [at, DECODE])];
    return starts.sort((a, b) => a[0] - b[0]).slice(0, tickets).map(([, op]) => op); // a sort that is stable
  },
};

function deal(policy, prefill, decode, sms) {
  const ctas = prefill.length + decode.length;
  return POLICIES[policy](prefill, decode, sms, Math.min(ctas, 4 * Math.ceil(ctas / sms) + 8));
}

// A dealer: what the next CTA on an SM gets.
function dealer(policy, prefill, decode, sms) {
  const table = policy === "by index" ? null : deal(policy, prefill, decode, sms);
  const tickets = Array(sms).fill(0), next = [0, 0], slots = [prefill.length, decode.length];
  return (sm) => {
    const ticket = tickets[sm]++;
    let op = table ? table[ticket] ?? DECODE : next[PREFILL] < slots[PREFILL] ? PREFILL : DECODE, draws = 1;
    if (next[op] >= slots[op]) [op, draws] = [1 - op, 2];
    return { op, id: next[op]++, ticket, draws };
  };
}

// Every CTA in the order of their starts, as pod/schedule/waves.py places them: each in the slot that is free first, where
// several are in that of the CTA that began first. Slot s is on SM s % sms.
function run({ policy, prefill, decode, sms, slots }) {
  const draw = dealer(policy, prefill, decode, sms), costs = [prefill, decode];
  const free = Array.from({ length: sms * slots }, (_, slot) => ({ slot, end: 0, cta: slot - sms * slots }));
  return Array.from({ length: prefill.length + decode.length }, (_, cta) => {
    const place = free.reduce((a, b) => (b.end < a.end || (b.end === a.end && b.cta < a.cta) ? b : a));
    const start = place.end, sm = place.slot % sms, got = draw(sm);
    Object.assign(place, { cta, end: start + costs[got.op][got.id] });
    return { cta, slot: place.slot, sm, start, end: place.end, ...got };
  });
}

const makespan = (ran) => Math.max(0, ...ran.map((cta) => cta.end));

// On how many SMs both operations run, on average over the time.
function both(ran, sms) {
  const times = [...new Set(ran.flatMap(({ start, end }) => [start, end]))].sort((a, b) => a - b);
  const at = (time) => new Set(ran.filter((c) => c.op === PREFILL && c.start <= time && time < c.end).map((c) => c.sm)
    .filter((sm) => ran.some((c) => c.op === DECODE && c.sm === sm && c.start <= time && time < c.end))).size;
  return times.slice(0, -1).reduce((sum, time, i) => sum + at(time) * (times[i + 1] - time), 0) / Math.max(makespan(ran), 1e-9);
}

// How far apart the two sides' shares of dealt work ever are, in %, when SMs take turns.
function gap({ policy, prefill, decode, sms }) {
  const draw = dealer(policy, prefill, decode, sms), costs = [prefill, decode], done = [0, 0];
  let worst = 0;
  for (let i = 0; i < prefill.length + decode.length; i++) {
    const { op, id } = draw(i % sms);
    done[op] += costs[op][id];
    worst = Math.max(worst, Math.abs(done[0] / total(prefill) - done[1] / total(decode)));
  }
  return 100 * worst;
}

// ---------------------------------------------------------------- the page

const OWN = ["prefills", "decodes", "long"];
const own = () => ({ prefill: Array(value("prefills")).fill(value("long")), decode: Array(value("decodes")).fill(1) });

function setup() {
  const preset = data.presets[value("preset")], work = preset.prefill ? preset : own();
  return { policy: value("policy"), sms: value("sms"), slots: value("slots"), ...work };
}

const WIDTH = 720, ROW = 24, MARGIN = 54;
const height = (now) => now.sms * (now.slots * ROW + 8) + 26;
const rowOf = (cta, now) => cta.sm * (now.slots * ROW + 8) + Math.floor(cta.slot / now.sms) * ROW;

function bar(cta, now, scale, isLast) {
  const group = svg("g", { class: `cta ${OPS[cta.op]}${cta.draws === 2 ? " second" : ""}${isLast ? " new" : ""}` });
  const x = MARGIN + cta.start * scale, width = (cta.end - cta.start) * scale;
  group.append(svg("rect", { x: x + 0.5, y: rowOf(cta, now) + 1, width: Math.max(1, width - 1), height: ROW - 2, rx: 2 }));
  const name = "PD"[cta.op] + cta.id;
  if (width > 8 * name.length + 2) group.append(svg("text", { x: x + width / 2, y: rowOf(cta, now) + 17, class: "middle" }, name));
  return group;
}

function draw() {
  for (const name of OWN) control(name).closest("label").hidden = !!data.presets[value("preset")].prefill;
  const now = setup(), ran = run(now), step = value("step"), shown = ran.slice(0, step), end = makespan(ran);
  const picture = document.getElementById("picture"), scale = (WIDTH - MARGIN - 8) / Math.max(end, 1e-9);
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height(now)}`);
  picture.replaceChildren(...Array.from({ length: now.sms }, (_, sm) => svg("text", { x: 0, y: sm * (now.slots * ROW + 8) + 17 }, `SM ${sm}`)),
    ...Array.from({ length: now.sms * now.slots }, (_, slot) => svg("rect", { class: "lane", x: MARGIN, width: WIDTH - MARGIN - 8, height: ROW - 2,
      y: rowOf({ sm: slot % now.sms, slot }, now) + 1 })),
    ...shown.map((cta, i) => bar(cta, now, scale, i === step - 1)),
    svg("text", { x: MARGIN, y: height(now) - 4 }, "0"), svg("text", { x: WIDTH - 8, y: height(now) - 4, class: "end" }, `time ${end.toFixed(1)}`));
  say(shown.length ? tell(shown[step - 1], now) : "Nothing has started. Press ▶, or Play.");
  facts({ "all done at": end.toFixed(2), "SMs that hold both, on average": `${both(ran, now.sms).toFixed(1)} of ${now.sms}`,
    "shares of work furthest apart, dealt in turns": now.prefill.length && now.decode.length ? `${gap(now).toFixed(0)} %` : "–",
    "left": OPS.map((op, i) => `${op} ${now[op].length - shown.filter((cta) => cta.op === i).length}`).join(", ") });
}

function tell({ cta, sm, ticket, op, id, draws }, { policy }) {
  const place = `CTA ${cta} starts on SM ${sm}`;
  if (policy === "by index") return `${place}. Its number alone says: ${OPS[op]} ${id}.`;
  const vain = draws === 2 ? `asks for ${OPS[1 - op]}, of which nothing is left, and takes` : "takes";
  return `${place}, draws ticket ${ticket}, ${vain} ${OPS[op]} ${id}.`;
}

explore(draw, () => run(setup()).length);
