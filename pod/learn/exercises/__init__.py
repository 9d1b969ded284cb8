"""The exercises of each chapter: stubs, hidden cases and hints. What solves them lies in notebooks/solutions."""

CHAPTERS = ("online_softmax", "tiling", "two_phases", "waves", "first_kernels")  # the modules here
