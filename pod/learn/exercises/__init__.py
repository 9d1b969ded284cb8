"""The exercises of each chapter: stubs, hidden cases and hints. What solves them lies in notebooks/solutions."""

CHAPTERS = ("first_kernels",)  # the modules here, in the order of the walk
