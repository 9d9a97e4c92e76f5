"""Other frameworks on the same workloads, each behind a small adapter; ``catalog.py`` says which there are."""
