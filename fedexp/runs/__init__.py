"""What is on disk of runs and sweeps: ``python -m fedexp.runs``."""
