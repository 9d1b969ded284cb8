"""The exercises of each chapter: stubs, hidden cases and hints. What solves them lies in notebooks/solutions."""
