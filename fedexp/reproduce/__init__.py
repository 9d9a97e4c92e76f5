"""The tables and figures of the five papers: their numbers as data, the runs behind them, ours beside theirs."""
