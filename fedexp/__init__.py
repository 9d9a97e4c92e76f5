"""fedexp: federated learning experiments when clients own only some of the classes."""

__version__ = "0.1.0"
