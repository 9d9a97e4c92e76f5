"""Where the clients' work runs: in this process, in several on this machine, or on a cluster. The numbers are equal."""
