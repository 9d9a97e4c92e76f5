"""Tests, metrics and the papers' protocols."""
