"""Measuring on a GPU: timing, peers, provenance. What is measured, the pages of pod/experiments say."""
