"""What becomes of the jobs of a multirun: their reports, how far the sweep is, its tables, and its cost beforehand."""

from fedexp.sweep.jobs import ENV, Status, SweepJob, collect, record_job, say
from fedexp.sweep.listing import show_plan
from fedexp.sweep.progress import announce, heading
from fedexp.sweep.results import Row, SeedSpread, show, table, write_csv

__all__ = [
    "ENV", "Row", "SeedSpread", "Status", "SweepJob", "announce", "collect", "heading", "record_job", "say", "show",
    "show_plan", "table", "write_csv",
]  # fmt: skip
