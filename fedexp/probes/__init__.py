"""Probes: read-only observers of clients and server, chosen by ``probe=[...]``. No number of a run depends on them."""
