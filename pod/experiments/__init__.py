"""One page an experiment, in folders by source: what is run, the table, the picture, and what claims ask for.

The page of figure "pod-06" is pod_06.py in one of the folders; adding the file is all it takes to register it. All keep
that order; those of more than a hundred lines have headings where a part begins.

A page that draws has FIGURE, table() -> pandas.DataFrame, and draw(df) -> matplotlib Figure, of that table alone.
A page that makes a table names it, RECORDING where it takes a GPU and COMPUTED where not. It has KEYS (the columns that
name a row), cases() -> list of rows of keys, and measure(case) -> dict of the other columns; of what is computed also
a list of rows, where one case gives several.

What is measured: UNITS (what ran, as pod/lab/measure/sources.py names it) and REPEATS; TIMER (how time is taken, in
words) and L2 ("cold" or "warm") where they differ from pod/lab/measure/timing.py. WHOLE: the columns that name one
execution, where its rows are no good without each other, () if that is all of them; an interruption keeps it whole or
drops it. planned(case, gpu): the schedules of what runs, where they follow from the case alone; when other work lists
come of it, the recording is stale.
What is computed: READS, the tables that it starts from, and UNITS, the kernels that it compiles.

torch is imported within functions, everything else at the top: listing all figures takes a second.
"""
