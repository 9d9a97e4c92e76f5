"""The page of all results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedexp.errors import DiskError
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.page import NAME, generated, judged_table, other_files, page, write_page
from fedexp.reproduce.results import read_results, results_file, write_results
from fedexp.reproduce.tables.making import make_table
from tests.unit.reproduce.fakes import result
from tests.unit.reproduce.sweep import GOLDEN, asked, entry, table

FIGURE = Entry(id="demo/fig2", kind="train", title="A figure")
DRAWING = Entry(id="demo/fig1", kind="text", title="A drawing")


def text(**parts) -> str:
    return page([table()], [entry(), DRAWING, FIGURE], **parts)


def test_it_says_what_was_run():
    told = text()
    assert "- 13 runs (11 done, 1 diverged, 1 failed), 0.2 hours of training in all" in told
    assert "- seeds 0, 1, 2; 30 to 150 rounds" in told
    assert "- 1 run reduced (†): 1 shorter than the paper's or changed otherwise, 0 stand-ins" in told
    assert "- demo: 5 of 11 printed results compared (1 reproduced, 1 compatible, 1 above, 1 below, 1 unjudged)" in told
    assert "- fedexp 0.1.0, torch 2.15.0: 13 runs" in told


def test_a_run_that_gives_numbers_to_two_tables_is_one_run():
    twice = page([table(), table()], [])
    assert "- 13 runs (" in twice


def test_cells_are_counted_by_verdict_for_each_table_and_in_all():
    lines = [line for line in text().splitlines() if line.startswith(("|  |", "| [demo", "| all"))]
    words = re.split(r" \| ", lines[0].strip("| "))
    assert words == ["reproduced", "compatible", "above", "below", "unjudged", "reduced", "failed", "missing"]
    assert lines[1] == "| [demo/table1](#demo-table1) | 1 | 1 | 1 | 1 | 1 | 1 | 2 | 3 |"
    assert lines[2] == "| all | 1 | 1 | 1 | 1 | 1 | 1 | 2 | 3 |"
    assert '<a id="demo-table1"></a>' in text()


def test_it_holds_each_table_with_its_notes():
    assert table().markdown(level=3) in text()


def test_what_a_paper_leaves_open_everywhere_is_said_once():
    known = [published.entry("map/table1"), published.entry("map/table2")]
    told = page([judged_table(one, []) for one in known], known)
    (note,) = [note for note in known[0].paper_notes if "how a class is divided" in note]
    assert told.count(note) == 1
    assert told.index(note) < told.index('<a id="map-table1">')


def test_numbers_are_the_best_of_several_settings_only_if_such_were_run_in_the_papers_scenes(paper):
    fields = {"entry": "tiny/table1", "method": "FedRS", "tuning": "algo.rs.alpha=0.5", "rounds": 2}
    alone = result(50.0, setting="stand-in/digits/mlp", reduced="stand-in", **fields)
    assert judged_table(paper.TABLE, [alone]).asked.tune == "none"
    assert judged_table(paper.TABLE, [alone, result(50.0, setting="digits/mlp", **fields)]).asked.tune == "paper"


def test_what_has_no_results_is_named_but_not_what_cannot_be_run():
    told = text().partition("## Without results")[2]
    assert "- demo: fig2\n" in told
    assert "`python -m fedexp.reproduce list` says what each would cost" in told


def test_claims_and_older_files_are_there_if_there_are_any():
    told = text(claims="- **confirmed**: more is more\n", others=["old_run.csv"])
    assert "\n\n- **confirmed**: more is more\n" in told.partition("## Claims\n")[2]
    assert r"[old\_run.csv](old_run.csv)" in told
    assert "## Claims" not in text()
    assert "## Older files" not in text()


def test_without_results_it_says_so():
    told = page([], [entry()])
    assert "So far these are counts; nothing has been trained for them." in told
    assert "- demo: table1\n" in told


def test_counts_without_runs_need_no_words_about_runs():
    counts = make_table(asked(replace(entry(), kind="count")), {}, [])
    assert "So far these are counts; nothing has been trained for them." in page([counts], [])


def test_the_page_is_written_only_if_it_has_changed(tmp_path):
    path = tmp_path / "README.md"
    assert write_page(path, "one")
    before = path.stat().st_mtime_ns
    assert not write_page(path, "one")
    assert path.stat().st_mtime_ns == before
    assert write_page(path, "two")
    assert path.read_text() == "two"


def test_a_page_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "README.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match="symbolic link"):
        write_page(tmp_path / "README.md", "one")


def test_the_committed_page_is_the_generated_one():
    folder = Path(__file__).parents[3] / "multirun" / "results"
    assert (folder / NAME).read_text() == generated(folder), "python -m fedexp.reproduce page writes it"


def test_results_in_the_folder_get_their_verdicts(tmp_path):
    entry_ = published.entry("map/table1")
    number = next(n for n in entry_.numbers if n.setting == "fmnist/mlpnet")
    row = replace(
        read_results(GOLDEN / "sweep.csv")[0],
        **{"entry": entry_.id, "setting": number.setting, "method": number.method, "metric": number.metric},
    )
    write_results(results_file(tmp_path, entry_.id), [replace(row, value=number.value - 20)])
    told = generated(tmp_path)
    assert "| [map/table1](#map-table1) | 1 | " in told
    assert re.search(rf"\| {number.method} \| .* \| −20\.0 \| \*\*below\*\* \|", told)
    assert "## Claims" in told


def test_no_command_asks_for_what_is_not_a_method(tmp_path):
    entry_ = published.entry("fedgela/table5")
    row = replace(read_results(GOLDEN / "sweep.csv")[0], entry=entry_.id, setting=entry_.scenes[0])
    done = [replace(row, method=m, metric=k) for m in entry_.rows for k in ("PA", "GA") if m != "best baseline"]
    write_results(results_file(tmp_path, entry_.id), done[1:])
    told = generated(tmp_path).partition('<a id="fedgela-table5">')[2]
    assert "| best baseline | – |" in told
    assert f"settings={entry_.scenes[0]} methods={done[0].method} seeds=0\n" in told


def test_other_files_are_those_outside_of_the_papers_folders(tmp_path):
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "table1.csv").touch()
    (tmp_path / "older.csv").touch()
    assert other_files(tmp_path) == ["older.csv"]
