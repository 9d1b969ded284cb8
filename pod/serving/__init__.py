"""Serving: who runs in which iteration, where the keys and values live, and an engine that computes it.

A scheduler forms a batch, an executor runs it, `loop.serve` turns the crank and writes one event an iteration. The
schedulers see lengths and blocks only, so the same objects drive a real model here and the clock of pod/simulate.
"""
