"""Signals, cores, memory, limits: what the operating system has to say."""
