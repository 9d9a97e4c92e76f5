"""Dashboards in Weights & Biases, made by code: a workspace, and a report for each reproduction."""
