"""The stutter as it happens: an animated SVG, drawn from the same table as the picture."""

from html import escape

from pod.lab import registry

WIDTH, ROW, LANE = 720, 92, 24
SLOWER = 3  # times: a second of the server takes three


def stutter() -> str:
    """Three ways to answer, one below the other, each with its lanes and the longest wait of a chat."""
    page = registry.page("stutter")
    table = page.table()
    scale, gaps = WIDTH / table.end.max(), page.gaps(table)
    ways = "".join(
        _way(i, way, part, gaps[way], scale) for i, (way, part) in enumerate(table.groupby("way", sort=False))
    )
    words = "; ".join(f"{way}: a chat waits up to {1000 * gap:.0f} ms" for way, gap in gaps.items())
    svg = f"""<svg viewBox="0 0 {WIDTH} {3 * ROW}" role="img" aria-label="{escape(page.FIGURE.title)}. {escape(words)}."
style="--seconds: {SLOWER * table.end.max():.1f}s">{ways}</svg>"""
    return f"""<figure class="stutter">{svg}<figcaption><b class="key prefill">the long prompt</b>
<b class="key decode">each of {page.CHATS} chats; a dot is a token</b> <button type="button" id="again">Again</button>
<br>{escape(page.FIGURE.method)} {SLOWER} times slower than it would be.</figcaption></figure>"""


def _way(i: int, way: str, part, gap: float, scale: float) -> str:
    y, rows = i * ROW, list(dict.fromkeys(registry.page("stutter").ROWS))
    bars = "".join(_bar(r, y + 26 + (LANE + 4) * rows.index(r.row), scale, r.row == rows[1]) for r in part.itertuples())
    head = f'<text y="{y + 16}">{escape(way)}</text>'
    wait = f'<text class="strong end" x="{WIDTH}" y="{y + 16}">{1000 * gap:.0f} ms of silence</text>'
    return f'{head}{wait}<g class="sweep">{bars}</g>'


def _bar(row, y: int, scale: float, token: bool) -> str:
    x, end = scale * row.start, scale * row.end
    dot = f'<circle class="token" cx="{end - 3:.1f}" cy="{y + LANE / 2:g}" r="2.6"/>' if token else ""
    width = max(end - x - 1, 0.5)
    return f'<rect class="{row.kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" rx="1.5"/>{dot}'
