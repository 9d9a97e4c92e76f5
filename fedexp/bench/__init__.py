"""The benchmark: fedexp against a loop written by hand that takes the same steps. ``python -m fedexp.bench --help``."""
