"""``python -m fedexp.reproduce``: what needs no run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedexp.reproduce import counts, published
from fedexp.reproduce.__main__ import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def said(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, str]:
        code = main(argv)
        captured = capsys.readouterr()
        assert list(tmp_path.iterdir()) == []
        return code, captured.out + captured.err

    return run


def test_all_entries_are_listed(said):
    code, listed = said("list")
    assert code == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in listed.splitlines() if "/" in line.partition(" ")[0]}
    assert list(lines) == list(published.entries())
    assert len(lines) == 65
    assert lines["map/table1"].startswith("map/table1 train 168 ~ ")
    assert "189 missing" in lines["map/table1"]
    assert lines["map/fig11"].startswith("map/fig11 train 126 ~ ")  # 20 settings of MAP and FedAvg, in six scenes
    assert lines["fedrs/fig5"].startswith("fedrs/fig5 train 60 ")
    assert lines["map/fig1"].startswith("map/fig1 text – – –")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Which table?"),
        (["lst"], "lst: there is no such command or entry. Did you mean 'list'?"),
        (["statsu", "map/table1"], "statsu: there is no such command or entry. Did you mean 'status'?"),
        (["map/table1", "seeds="], "seeds= has no value."),
        (["map/table1", "settings=", "methods=FedAvg"], "settings= has no value."),
        (
            ["map/table1", "settings=fmnist/mlpnet", "rounds=151"],
            "rounds=151: fmnist/mlpnet has 150 rounds",
        ),
        (["map/tabel1"], "map/tabel1: there is no such table or figure. Did you mean 'map/table1'"),
        (["map/table1", "map/table2"], "map/table2: one entry at a time."),
        (["map/table1", "method=FedAvg"], "method is not known here. Did you mean 'methods'?"),
        (["map/table1", "setings=fmnist/mlpnet"], "setings is not known here. Did you mean 'settings'?"),
        (["fedrs/fig11", "seeds=0,1"], "seeds=0,1: a partition is shown for one seed. Name one."),
        (["map/table1", "standins=yes"], "standins=yes: this must be true or false."),
        (["map/table1", "plan=maybe"], "plan=maybe: this must be true or false."),
        (["map/table1", "format=pdf"], "format=pdf: there is no such format."),
        (["map/table1", "-x"], "-x: a table or figure takes no such argument."),
        (["map/table1", "methods=map"], "Did you mean 'MAP'"),
        (["list", "rounds=3"], "rounds=3: list takes no such argument."),
        (["list", "map/table1"], "map/table1: list is about all entries."),
        (["export"], "Which table?"),
        (["map/table1", "methods=,"], "methods=,: this names nothing."),
        (["status", "map/table1", "foo=bar"], "foo"),
        (["status", "map/table1", "plan=true"], "plan=true: status takes no such argument."),
        (["export", "map/table1", "plan=true"], "plan=true: export takes no such argument."),
        (["status", "loop=fabric"], "loop=fabric: this needs one entry."),
        (["fedrs/table4", "optim.lr=5"], "optim.lr=5: nothing is trained for fedrs/table4"),
        (["fedrs/fig11", "rounds=7"], "rounds=7: nothing is trained for fedrs/fig11"),
        (["fedrs/fig1", "to=fig1.md"], "to=fig1.md: nothing is trained for fedrs/fig1"),
        (["map/fig9", "figure=plane.txt"], "figure=plane.txt has to end in"),
        (["status", "methods=FedAvg"], "methods: this needs one entry."),
        (["status", "to=table.md"], "to: this needs one entry."),
        (["claims", "format=csv"], "format=csv: claims are written for the terminal or in markdown."),
        (["status", "map/table1", "results=nowhere"], "results=nowhere: there is no such folder."),
        (["map/table1", "settings=fmnist/mlpnet", "methods=FedAvg", "rounds=1", "optim.lr=-1"], "optim.lr"),
        (["map/table1", "figure=table.png"], "map/table1 is no figure that is drawn from runs."),
        (["map/fig9", "figure=plane.png", "out=nowhere"], "none of its runs is finished"),
        (["map/fig9", "settings=fmnist/*", "figure=plane.png", "out=nowhere"], "none of its runs is finished"),
        (["map/fig9", "settings=mnist", "figure=plane.png"], "map/table1 has no setting of this name."),
        (["map/table1", "settings=fmnist/mlpnet", "methods=FedAvg", "hydra/launcher=jobl"], "Did you mean 'joblib'?"),
    ],
)
def test_wrong_input_is_answered_in_a_sentence(said, arguments, words):
    code, answer = said(*arguments)
    assert code == 2
    assert answer.startswith("ConfigError: ")
    assert words in answer


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("map/fig1", "There is nothing to compute."),
        ("fedrs/fig11", "32 of 32 classes have an owner"),
        ("map/fig9", "It has no runs of its own; it is drawn from the runs of map/table1 and map/table2."),
    ],
)
def test_entries_without_runs_say_so(said, entry, words):
    code, answer = said(entry)
    assert code == 0
    assert words in answer


def test_a_figure_of_probes_says_where_all_numbers_are(said):
    code, answer = said("map/fig8", "plan=true")
    assert code == 0
    assert "map/fig8 shows what probes observe (classifier, proxies)." in answer
    assert "2 runs to do" in answer


def test_what_cannot_be_counted_here_is_shown_as_it_is_on_file(said, monkeypatch, tmp_path):
    monkeypatch.setattr(counts, "FEDRS_SCENES", {"mnist-2": "mnist-2/lenet2d"})
    nowhere = [f"data.root={tmp_path}", "data.download=false"]
    code, answer = said("fedrs/table2", *nowhere)
    assert code == 1
    assert "0 of 35 printed numbers run: 5 failed, 30 missing" in answer
    code, answer = said("fedrs/table2", *nowhere, f"results={ROOT / 'multirun' / 'results'}")
    assert "20 of 35 printed numbers run" in answer
    assert "failed" not in answer


def test_a_plan_says_how_many_of_its_runs_have_results_on_file(said):
    results = f"results={ROOT / 'multirun' / 'results'}"
    code, answer = said("map/table1", "settings=fmnist/mlpnet", "methods=FedAvg,pFedMe", "plan=true", results)
    assert code == 0
    assert "0 of them done on this machine. 1 of the others have results on file, which `status` shows." in answer


def test_a_narrow_list_has_no_titles(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, answer = said("list")
    assert "Aggregation: the server's model" not in answer
    assert "168  ~" in next(line for line in answer.splitlines() if line.startswith("map/table1 "))
    assert max(map(len, answer.splitlines())) <= 80


def test_status_without_any_result_is_not_complete(said):
    code, answer = said("status", "map/table1", "settings=fmnist/mlpnet")
    assert code == 1
    assert "21 missing" in answer
    assert "python -m fedexp.reproduce map/table1 settings=fmnist/mlpnet" in answer


def test_claims_are_shown_without_any_result(said):
    code, answer = said("claims")
    assert code == 0
    assert "not run: MAP is above FedAvg in both goals" in answer


@pytest.mark.parametrize(
    "arguments", [["list"], ["claims"], ["status", "map/table1"], ["map/table1", "plan=true", "settings=fmnist/*"]]
)
def test_what_trains_nothing_needs_no_torch(arguments, tmp_path):
    code = (
        "import sys; from fedexp.reproduce.__main__ import main; main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
