"""What was claimed, what we found, and the verdict, as a table of a notebook."""

HEAD = "| claim | the paper | here | range | verdict |\n|---|--:|--:|--:|---|\n"


def verdicts(*figures: str):
    """The paper's claims on these figures, and all claims on them in a fold."""
    from IPython.display import Markdown

    from pod.lab import claims

    results = [result for figure in figures for result in claims.results(figure)]
    rows = [
        f"| {r.claim.statement} | {r.claim.number.text} | {r.spread_text} | {r.band_text} | {r.verdict} |\n"
        for r in results
        if r.claim.paper
    ]
    fold = f"<details><summary>All {len(results)}</summary>\n\n```\n{claims.table(results)}\n```\n</details>"
    return Markdown(HEAD + "".join(rows) + "\n" + fold)
