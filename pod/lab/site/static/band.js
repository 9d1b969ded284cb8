// The band: roofline times of a hybrid batch's two halves, and the waits that follow for the chats.
"use strict";

// Seconds that a part needs alone: `q` new tokens of each of `many` sequences that see `kv` tokens.
function alone(q, kv, many, gpu) {
  const { num_q_heads, num_kv_heads, head_dim } = data.heads;
  const pairs = q * kv - (q * (q - 1)) / 2;
  const flops = 4 * head_dim * num_q_heads * pairs;
  const bytes = 4 * head_dim * (kv * num_kv_heads + q * num_q_heads); // keys, values, queries and output, 2 bytes each
  return many * Math.max(flops / gpu.flops, bytes / gpu.bytes);
}

// Prefill and decode of the iteration whose chunk ends at token `end` of the prompt.
function halves(chunk, end, chats, key) {
  const gpu = data.gpus[key];
  return [alone(chunk, end, 1, gpu), alone(1, data.context, chats, gpu)];
}

// The longest wait of a chat, and when the prompt is done, in ms, with `hidden` of the shorter half disappearing.
function waits(run, hidden) {
  const sum = (times) => times.reduce((a, b) => a + b, 0);
  const some = run.serial.map((time, i) => time - hidden * (time - run.oracle[i]));
  return {
    "whole prompt first": { times: run.whole, wait: run.whole[0] + run.idle, done: run.whole[0] },
    "in chunks": { times: run.serial, wait: Math.max(...run.serial, run.idle), done: sum(run.serial) },
    "in chunks, overlapped": { times: some, wait: Math.max(...some, run.idle), done: sum(some) },
  };
}

const LEFT = 56, RIGHT = 700, TOP = 30, BOTTOM = 280, WIDEST = 16;
const across = (ratio) => LEFT + ((RIGHT - LEFT) * (Math.log(Math.min(WIDEST, Math.max(1 / WIDEST, ratio))) + Math.log(WIDEST))) / (2 * Math.log(WIDEST));
const up = (height) => BOTTOM - (BOTTOM - TOP) * (height - 1);
const sumOver = (ratio) => 1 + Math.min(ratio, 1 / ratio);

function frame(picture) {
  const edge = Array.from({ length: 129 }, (_, i) => WIDEST ** (i / 64 - 1));
  const upper = edge.map((r) => `${across(r)},${up(sumOver(r))}`).join(" ");
  picture.append(svg("polygon", { class: "shade", points: `${upper} ${RIGHT},${up(1)} ${LEFT},${up(1)}` }));
  picture.append(svg("polyline", { class: "edge", points: upper }));
  picture.append(svg("line", { class: "edge", x1: LEFT, x2: RIGHT, y1: up(1), y2: up(1) }));
  for (const r of [1 / 16, 1 / 4, 1, 4, 16])
    picture.append(svg("text", { x: across(r), y: BOTTOM + 22, class: "middle" }, r < 1 ? `1/${1 / r}` : r));
  for (const h of [1, 1.5, 2]) picture.append(svg("text", { x: LEFT - 8, y: up(h) + 5, class: "end" }, h));
  picture.append(svg("text", { x: LEFT, y: BOTTOM + 42 }, "decode is longer"), svg("text", { x: RIGHT, y: BOTTOM + 42, class: "end" }, "prefill is longer"),
    svg("text", { x: across(1.9), y: up(1.62) }, "above: one after the other, a + b"), svg("text", { x: across(1), y: BOTTOM + 42, class: "middle" }, "below: perfect overlap, max(a, b)"));
}

const setting = () => ({ chats: value("chats"), chunk: Number(value("chunk")), hidden: value("hidden") / 100, gpu: value("gpu"), step: value("step") });
const ends = (chunk) => Array.from({ length: Math.ceil(data.prompt / chunk) }, (_, i) => Math.min(data.prompt, (i + 1) * chunk));

function drawBand({ chats, chunk, hidden, gpu, step }) {
  const picture = document.getElementById("picture");
  picture.replaceChildren();
  frame(picture);
  ends(chunk).forEach((end, i) => {
    const [a, b] = halves(chunk, end, chats, gpu), x = across(a / b), top = sumOver(a / b), here = i + 1 === step;
    const kind = a > b ? "prefill" : "decode", y = up(top - hidden * (top - 1));
    if (here) picture.append(svg("line", { class: `now ${kind}`, x1: x, x2: x, y1: up(top), y2: up(1) }));
    if (i < step) picture.append(svg("circle", { class: kind, cx: x, cy: y, r: here ? 8 : 4, "data-chunk": i + 1 }));
  });
}

function drawTimes(ways, idle, step) {
  const picture = document.getElementById("times"), longest = Math.max(...Object.values(ways).map((way) => way.done)) + 3 * idle;
  const scale = 560 / longest;
  picture.replaceChildren(...Object.entries(ways).flatMap(([name, { times, wait, done }], row) => {
    const y = 24 + 58 * row, whole = row === 0;
    let x = 0;
    const bars = times.map((time, i) => {
      const bar = svg("rect", { x, y, width: Math.max(0.5, time * scale - 0.6), height: 24, class: `${whole ? "prefill" : "hybrid"}${whole || i < step ? "" : " later"}` });
      x += time * scale;
      return bar;
    });
    while (x + idle * scale <= 560) {
      bars.push(svg("rect", { x, y, width: Math.max(0.5, idle * scale - 0.6), height: 24, class: "decode" }));
      x += idle * scale;
    }
    return [svg("text", { x: 0, y: y - 7 }, `${name}: the prompt is done after ${(done / 1000).toFixed(2)} s`), ...bars,
      svg("text", { x: 574, y: y + 18, class: "strong" }, `${wait.toFixed(0)} ms`)];
  }));
}

function drawAll() {
  const now = setting(), run = data.runs[`${now.gpu} ${now.chats} ${now.chunk}`], ways = waits(run, now.hidden);
  const [a, b] = halves(now.chunk, ends(now.chunk)[Math.max(now.step, 1) - 1], now.chats, now.gpu), best = sumOver(a / b);
  drawBand(now);
  drawTimes(ways, run.idle, now.step);
  const us = (seconds) => (1e6 * seconds).toFixed(0);
  say(`Chunk ${Math.max(now.step, 1)}: prefill ${us(a)} µs, decode ${us(b)} µs a layer. Overlap wins at most ${best.toFixed(2)}×, and `
    + `${((a + b) / (a + b - now.hidden * Math.min(a, b))).toFixed(2)}× as set. A chat waits up to `
    + `${Object.values(ways).map((way) => way.wait.toFixed(0)).join(", ")} ms.`);
}

explore(drawAll, () => ends(Number(value("chunk"))).length);
