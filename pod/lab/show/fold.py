"""A table that a reader may open, where the picture or the text has said what it is for."""

import pandas as pd


def folded(summary: str, df: pd.DataFrame):
    """The table under one line, closed."""
    from IPython.display import HTML

    table = df.to_html(border=0).replace(' class="dataframe"', "")  # a page of the site has styles of its own
    return HTML(f"<details><summary>{summary}</summary>\n{table}\n</details>")
