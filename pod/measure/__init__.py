"""Measuring on a GPU: timing, peers, provenance, and one suite a figure."""
