"""Figures of runs, one module per kind: what it shows (a data frame) and how it is drawn (an Altair specification)."""
