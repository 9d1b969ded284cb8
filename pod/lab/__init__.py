"""The laboratory: measure, compare, keep, judge and draw. Nothing of the library needs it."""
