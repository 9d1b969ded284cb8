"""What was claimed, what we found, and the verdict, as tables of a notebook."""

import pandas as pd

from pod.lab import claims

HEAD = "| claim | the paper | here | range | verdict |\n|---|--:|--:|--:|---|\n"
OWN = "our own"


def verdicts(*figures: str):
    """The paper's claims on these figures, and all claims on them in a fold."""
    results = [result for figure in figures for result in claims.results(figure)]
    rows = [
        f"| {r.claim.statement} | {r.claim.number.text} | {r.spread_text} | {r.band_text} | {r.verdict} |\n"
        for r in results
        if r.claim.paper
    ]
    fold = f"<details><summary>All {len(results)}</summary>\n\n```\n{claims.table(results)}\n```\n</details>"
    return _markdown(HEAD + "".join(rows) + "\n" + fold)


# ---------------------------------------------------------------- by what they are over


def with_bases(stated: list, own: list):
    """What a post states, each beside what is compared; under the table the batches, once where rows share them. Our
    own claims in a fold."""
    summary = f"<details><summary>The {len(own)} of our own</summary>"
    return _markdown(f"{_over(stated, 'the post')}\n\n{summary}\n\n{_over(own)}\n\n</details>")


def _over(results: list, stated: str = "") -> str:
    """`stated`: the head of a column of what was stated, if it was."""
    compared, batches = zip(*(r.base.split("; ", 1) for r in results), strict=True)
    letters = dict(zip(dict.fromkeys(batches), "abcdefgh", strict=False))
    rows = []
    for r, what, batch in zip(results, compared, batches, strict=True):
        claim, what = f"`{r.claim.id}`: {r.claim.statement}", what.removesuffix(", x").removesuffix(", %")
        number = [r.claim.number.text] if stated else []
        rows.append((claim, what, *number, r.spread_text, r.band_text, r.verdict, letters[batch]))
    head = ("claim", "what is compared", *([stated] if stated else []), "here", "range", "verdict", "base")
    evidence = dict(zip(batches, (r.evidence for r in results), strict=True))
    notes = [f"- {letter}: {evidence[batch]}, {batch}." for batch, letter in letters.items()]
    return _table(head, rows) + "\n\n" + "\n".join(notes)


# ---------------------------------------------------------------- by what they are about


def before(figure: str, word: str):
    """The sources' claims that `figure` settles and whose statement has `word`, as they stood before a value."""
    rows = [c for c in claims.load() if c.shown_in == figure and c.paper and word in c.statement]
    cells = [(c.number.text, c.statement, claims.Result(c, None).band_text) for c in rows]
    return _markdown(_table(("paper", "what is claimed", "holds within"), cells))


def judged(about: dict[str, str]) -> pd.DataFrame:
    """One row a claim, in the order of `about`: what the sources' claims are about that a figure settles. Our own come
    last."""
    results = [claims.judge(c) for c in claims.load() if c.shown_in in about]
    rows = [(about[r.claim.shown_in] if r.claim.paper else OWN, r.verdict, f"{r.claim.id}: {r.claim.statement}",
             r.claim.number.text, r.spread_text, r.band_text, r.base, r.why) for r in results]  # fmt: skip
    columns = ["about", "verdict", "claim", "paper", "here", "holds within", "over what", "reason or note"]
    order = pd.CategoricalDtype([*dict.fromkeys(about.values()), OWN])
    return pd.DataFrame(rows, columns=columns).astype({"about": order}).sort_values("about", kind="stable")


def counted(df: pd.DataFrame) -> pd.DataFrame:
    """How many hold and how many do not, by what they are about."""
    return pd.crosstab(df.about, df.verdict, margins=True, margins_name="all", rownames=["claims about"], colnames=[""])


def failed(df: pd.DataFrame):
    """Those that do not hold, folded."""
    part = df[df.verdict == claims.FAILS][["about", "claim", "paper", "here", "holds within"]]
    return _folded(f"Those that do not hold: {len(part)}", part)


def grouped(df: pd.DataFrame):
    """All of them, folded, with bases and reasons: a table for each of what they are about, over which the batches
    stand once that several rows share."""
    groups = [f"**{about}**\n\n{_group(part)}" for about, part in df.groupby("about", observed=True)]
    text = "\n\n".join((f"<details><summary>All {len(df)}, with their reasons</summary>", *groups, "</details>"))
    return _markdown(text)


def _group(df: pd.DataFrame) -> str:
    compared, _, batches = zip(*(words.partition("; ") for words in df["over what"]), strict=True)
    shared = [words for words in dict.fromkeys(batches) if words and batches.count(words) > 1]
    letters = dict(zip(shared, "abcdefgh", strict=False))
    over = [f"{what} ({letters[batch]})" if batch in letters else "; ".join(filter(None, (what, batch)))
            for what, batch in zip(compared, batches, strict=True)]  # fmt: skip
    notes = [f"- ({letter}) {batch}." for batch, letter in letters.items()]
    rows = df.drop(columns="about").assign(**{"over what": over})
    return "\n\n".join(filter(None, ("\n".join(notes), _table(rows.columns, rows.to_numpy()))))


def _folded(summary: str, df: pd.DataFrame):
    return _markdown(f"<details><summary>{summary}</summary>\n\n{_table(df.columns, df.to_numpy())}\n\n</details>")


def _table(head, rows) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _markdown(text: str):
    from IPython.display import Markdown

    return Markdown(text)
