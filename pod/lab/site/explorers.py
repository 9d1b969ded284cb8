"""Three pages to play with. Their rules are JavaScript; what they need to know is computed here, by the functions that
the chapters call, and a test holds the rules against those of pod/schedule and pod/serving."""

from collections.abc import Mapping
from html import escape
from unittest.mock import patch

from pod.batch import MODELS
from pod.hardware import A100, H200
from pod.lab import registry
from pod.lab.site.frame import Page, chapter_path
from pod.schedule import binding
from pod.serving.shapes import SHAPES
from pod.simulate import scenarios

DOORS = (
    ("explore/band.html", "The band", "A long prompt among chats: what can overlap win back, chunk by chunk?"),
    ("explore/tickets.html", "Tickets", "Step by step: an SM's next CTA draws a ticket and learns what it is."),
    ("explore/schedulers.html", "Schedulers", "The same requests under four schedulers: who waits for whom?"),
)
MODEL = "yi-6b"
WAYS = {"whole": "whole prompt first", "serial": "in chunks", "oracle": "in chunks, perfect overlap"}
CHATS, CHUNKS = range(10, 161, 10), (256, 512, 1024, 2048)


def pages() -> list[Page]:
    return [_doors(), band(), tickets(), schedulers()]


def _doors() -> Page:
    cards = "".join(
        f'<a class="door" href="{path.split("/")[1]}"><h2>{name}</h2><p>{text}</p></a>' for path, name, text in DOORS
    )
    body = f"""<h1>Explore</h1><p class="lead">No kernel runs behind these pages, and no server: the rules are a
few lines of JavaScript, held by a test against those of the repository.</p><div class="doors">{cards}</div>"""
    return Page("explore/index.html", "Explore", body)


def _page(name: str, chapter: str, body: str, data: Mapping) -> Page:
    title, lead = next((title, text) for path, title, text in DOORS if path == f"explore/{name}.html")
    link = f'<a href="../{chapter_path(chapter)}">Chapter&nbsp;{chapter[:2]}</a>'
    head = f'<h1>{title}</h1><p class="lead">{lead} {link}</p>'
    return Page(f"explore/{name}.html", title, f'<div class="explorer">{head}{body}</div>',
                scripts=("explore.js", f"{name}.js"), data=data, wide=True)  # fmt: skip


def _slider(name: str, label: str, low: float, high: float, value: float, step: float = 1) -> str:
    return (f'<label>{label}<span><input type="range" name="{name}" min="{low}" max="{high}" step="{step}" '
            f'value="{value}"><output></output></span></label>')  # fmt: skip


def _select(name: str, label: str, options: Mapping[str, str], value: str = "") -> str:
    rows = "".join(
        f'<option value="{escape(key)}"{" selected" if key == value else ""}>{escape(text)}</option>'
        for key, text in options.items()
    )
    return f'<label>{label}<select name="{name}">{rows}</select></label>'


def _play(label: str) -> str:
    return f"""<div class="play"><button type="button" name="back" aria-label="a step back">◀</button>
<button type="button" name="play">Play</button><button type="button" name="next" aria-label="a step on">▶</button>
<label>{label}<span><input type="range" name="step" min="0" max="1" value="0"><output></output></span></label></div>"""


# ---------------------------------------------------------------- the band


def band() -> Page:
    stutter = registry.page("stutter")
    controls = (_slider("chats", "chats", CHATS[0], CHATS[-1], stutter.CHATS, 10)
                + _select("chunk", "chunk, tokens", {str(c): f"{c:,}" for c in CHUNKS}, str(stutter.CHUNK))
                + _slider("hidden", "of the shorter part hides, %", 0, 100, 100, 1)
                + _select("gpu", "GPU", {gpu.key: gpu.name for gpu in (A100, H200)}))  # fmt: skip
    body = f"""<form class="controls">{controls}</form>{_play("chunk of the prompt")}
<figure><svg id="picture" viewBox="0 0 720 330" role="img" aria-label="The band of this batch"></svg>
<figcaption>Across: prefill time over decode time, each alone. Up: the time paid, in units of the longer part. A dot
is a chunk of the prompt; the prompt walks from left to right, because each chunk sees more keys than the one before.
The shaded band is all that there is to win.</figcaption></figure><p class="say" aria-live="polite"></p>
<figure><svg id="times" viewBox="0 0 720 190" role="img" aria-label="When the chats get their tokens"></svg>
<figcaption>Iterations of the server, as long as they take: <b class="key prefill">the prompt</b>
<b class="key decode">the chats alone</b> <b class="key hybrid">both</b> On the right, the longest wait of a
chat.</figcaption></figure><p class="note">{SHAPES[MODEL].name}, chats of {stutter.CONTEXT:,} tokens, a prompt of
{stutter.PROMPT:,}. The band is a roofline of attention in one layer; the iterations are simulated as in the first
picture of chapter 00, whose numbers these are at {stutter.CHATS} chats, chunks of {stutter.CHUNK:,} and an A100.</p>"""
    return _page("band", "00_start_here", body, band_data())


def band_data() -> dict:
    stutter, heads = registry.page("stutter"), MODELS[MODEL].heads()
    gpus = {gpu.key: {"flops": gpu.tensor_flops, "bytes": gpu.dram_bytes_per_s} for gpu in (A100, H200)}
    runs = {f"{gpu.key} {chats} {chunk}": iterations(gpu, chats, chunk)
            for gpu in (A100, H200) for chats in CHATS for chunk in CHUNKS}  # fmt: skip
    return {"gpus": gpus, "heads": heads, "context": stutter.CONTEXT, "prompt": stutter.PROMPT, "runs": runs}


def iterations(gpu, chats: int, chunk: int) -> dict:
    """Milliseconds of the iterations that a long prompt brings, as the page of the stutter has them: whole, in chunks,
    and in chunks with attention perfectly overlapped; and of one with the chats alone."""
    stutter = registry.page("stutter")
    with patch.multiple(stutter, CHATS=chats, CHUNK=chunk, A100=gpu):
        ways = {way: [round(1e3 * s, 4) for s in stutter.seconds(way)] for way in WAYS.values()}
    prompts = {name: ways[way][stutter.BEFORE : -stutter.AFTER] for name, way in WAYS.items()}
    return {"idle": ways["in chunks"][0], **prompts}


# ---------------------------------------------------------------- tickets


def tickets() -> Page:
    presets = {name: name for name in tickets_data()["presets"]}
    policies = {"by index": "by index: no tickets", **{name: name for name in binding.POLICIES}}
    controls = (_select("preset", "batch", presets) + _select("policy", "policy", policies, "50:50")
                + _slider("sms", "SMs", 1, 8, 4) + _slider("slots", "slots an SM", 1, 4, 2)
                + _slider("prefills", "prefill CTAs", 0, 40, 8) + _slider("decodes", "decode CTAs", 0, 76, 24)
                + _slider("long", "a prefill CTA takes", 1, 8, 2))  # fmt: skip
    body = f"""<form class="controls">{controls}</form>{_play("CTAs started")}
<p class="say" aria-live="polite"></p>
<figure><svg id="picture" role="img" aria-label="The SMs over time"></svg>
<figcaption><b class="key prefill">prefill</b> <b class="key decode">decode</b> Each row is a slot of an SM, time runs
to the right. A dashed edge: the CTA wanted the other kind, and nothing of it was left.</figcaption></figure>
<dl class="facts" id="facts"></dl><p class="note">A CTA starts in the first slot that is free; it reads on which SM it
is, draws that SM's next ticket, and the policy's table says what the ticket asks for. CTAs run at an even pace here,
whatever runs beside them: what they take from each other is the subject of chapters 06 and 10.</p>"""
    return _page("tickets", "07_sm_aware_scheduling", body, tickets_data())


def tickets_data() -> dict:
    """The batches of chapter 07; a number of CTAs that a slider may change is None there."""
    paper = registry.page("pod-08")
    longest = [2 * c / paper.CHATS[1] for c in paper.CHATS]
    causal = [keys / 1024 for keys in range(2560, 0, -256) for _ in range(4)]
    presets = {
        "one prefill for three decodes": {"prefill": [2] * 8, "decode": [1] * 24},
        "Figure 8: 8 prefills, 12 chats": {"prefill": [2] * 8, "decode": longest},
        "40 equal prefills, 76 decodes": {"prefill": [1] * 40, "decode": [1] * 76},
        "40 causal prefills, 120 decodes": {"prefill": causal, "decode": [1] * 120},
        "my own": {},
    }
    return {"presets": presets, "lead": binding.LEAD}


# ---------------------------------------------------------------- schedulers

TRACES = {
    "the dozen of chapter 12": {"requests": scenarios.DOZEN, "slots": scenarios.SLOTS, "chunk": 8, "prompt": 0},
    "a long prompt among chats": {
        "requests": [*((2, 14 + 2 * i, 0.0) for i in range(5)), (48, 6, 6.0), (3, 8, 7.0)],
        "slots": 8, "chunk": 12, "prompt": 0.25,
    },
    "two long prompts": {
        "requests": [*((2, 18 + i, 0.0) for i in range(4)), (36, 6, 4.0), (36, 6, 6.0)],
        "slots": 8, "chunk": 12, "prompt": 0.25,
    },
}  # fmt: skip
KNOWN = {"static": "static: the batch stays together", "orca": "Orca: join after any iteration",
         "vllm": "vLLM (2023): prompts first, alone", "sarathi": "Sarathi: chunks within a budget"}  # fmt: skip


def schedulers() -> Page:
    controls = (_select("trace", "requests", {name: name for name in TRACES}, "a long prompt among chats")
                + _select("scheduler", "scheduler", KNOWN, "orca") + _slider("slots", "slots", 1, 12, 4)
                + _slider("chunk", "token budget (Sarathi)", 2, 48, 8)
                + _slider("prompt", "a prompt token takes, ticks", 0, 1, 0, 0.05))  # fmt: skip
    chat = registry.page("pod-02").table().itertuples()
    rows = "".join(f"<tr><td>{r.system}</td><td>{r.ttft_long_prompt_ms:,.0f} ms</td><td>{r.tbt_max_ms:.0f} ms</td></tr>"
                   for r in chat)  # fmt: skip
    body = f"""<form class="controls">{controls}</form>{_play("iterations")}<p class="say" aria-live="polite"></p>
<figure><div class="scroll" tabindex="0"><svg id="picture" role="img" aria-label="Requests over time"></svg></div>
<figcaption><b class="key prefill">prefill</b> <b class="key decode">decode</b> One lane a request. A triangle is its
arrival, hatching a slot that is held and does nothing, and a number in a blue bar the prompt tokens of that
iteration.</figcaption></figure><dl class="facts" id="facts"></dl><p class="note">An iteration takes a tick, and
longer by its prompt tokens. Memory never runs out here, so nobody is preempted; in chapter 12 it does.</p>
<h2>The same on the chat server</h2><p>40 chats of 8K tokens, a prompt of 12,288: Llama-3-8B on two A100s, simulated
(<a href="../{chapter_path("13_chunked_prefill")}">chapter 13</a>).</p><div class="scroll" tabindex="0"><table>
<tr><th>scheduler</th><th>first token of the prompt</th><th>longest gap of a chat</th></tr>{rows}</table></div>"""
    return _page("schedulers", "12_continuous_batching", body, {"traces": TRACES})
