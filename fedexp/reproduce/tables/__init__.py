"""A published table with our numbers beside the paper's: what is in it, and how it is shown."""
