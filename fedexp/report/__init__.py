"""What came out of runs, to be looked at: data frames, tables and figures (extra ``report``)."""
