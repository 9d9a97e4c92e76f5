"""What jobs take, before they are run."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

import fedexp
from fedexp.client.fit import Fitter
from fedexp.client.worker import Worker
from fedexp.config.identity import run_path
from fedexp.errors import ConfigError
from fedexp.runs.directory import RunDir
from fedexp.sweep import SweepJob, show_plan
from fedexp.sweep import cost as costs
from fedexp.sweep.cost import cost, kind_of, paces
from fedexp.sweep.listing import Amount, Cost


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """No timings of other tests, and no finished runs that were looked up before."""
    monkeypatch.setattr(costs, "_timed", {})
    paces.cache_clear()


@pytest.mark.parametrize(
    "more",
    [(), ("algo=map",), ("mishaps.dropout=0.3", "mishaps.stragglers=0.5"), ("algo=fedrema_a", "local.epochs=2.5")],
    ids=str,
)
def test_the_counts_are_those_of_the_run(configured, monkeypatch, more) -> None:
    taken: list[int] = []
    fit = Fitter.fit

    def counting(self, ask):
        fitted = fit(self, ask)
        taken.append(fitted.steps)
        return fitted

    config = configured(*more)
    planned = cost(config)
    monkeypatch.setattr(Fitter, "fit", counting)
    result = fedexp.run(config)
    assert planned.whole == Amount(sum(taken), result.summary["bytes"]["up"], result.summary["bytes"]["down"])
    assert planned.left == planned.whole
    rows = list(csv.DictReader((result.path / "clients.csv").open()))
    assert planned.clients * planned.rounds == len(rows)


def test_nothing_is_written_where_runs_are(configured, tmp_path: Path) -> None:
    config = configured("algo=map", "store=disk")
    assert cost(config).state == "missing"
    assert not run_path(config).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_timed_once_for_its_kind(configured, monkeypatch) -> None:
    clients: list[int] = []
    real = Worker._round
    monkeypatch.setattr(
        Worker, "_round", lambda self, job, spent: (clients.append(job.client), real(self, job, spent))[1]
    )
    first = cost(configured())
    visits = len(clients)
    assert first.basis == "timed"
    assert first.seconds is not None
    assert visits > 1
    longer = cost(configured("rounds=300", "seed=1", "cohort.fraction=1.0"))
    assert len(clients) == visits
    assert longer.seconds is not None
    assert longer.seconds > 50 * first.seconds
    cost(configured("optim.lr=0.5"))
    assert len(clients) > visits


def test_timing_agrees_with_the_run(configured) -> None:
    """Within a factor that a busy machine may cost; a wrong unit or a forgotten factor is further off."""
    config = configured("rounds=40", "evaluate.all_clients=true")
    planned = cost(config).seconds
    spent = fedexp.run(config).summary["seconds"]
    assert planned is not None
    assert 0.2 < planned / sum(spent[k] for k in ("train", "evaluate", "final")) < 5


def test_finished_runs_of_the_same_kind_tell_the_seconds(configured) -> None:
    spent = fedexp.run(configured("seed=7")).summary["seconds"]
    again = cost(configured("seed=8", "rounds=6"))  # instead of three
    work = sum(value for kind, value in spent.items() if kind not in ("setup", "elapsed"))
    assert (again.seconds, again.basis) == (pytest.approx(2 * work), "runs")
    assert cost(configured("seed=7")).seconds is None  # there is nothing to do
    assert cost(configured("seed=8", "local.epochs=2")).basis == "timed"  # another kind


@pytest.mark.parametrize("content", ["{", "{}", '{"seconds": []}', "[]"])
def test_damaged_results_tell_nothing(configured, content: str) -> None:
    done = RunDir(run_path(configured("seed=7")))
    done.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(configured("seed=7"))))
    (done.path / "result.json").write_text(content)
    assert cost(configured("seed=8")).basis == "timed"


def test_a_partial_run_takes_what_is_left(configured) -> None:
    whole = cost(configured())
    path = run_path(configured())
    (path / "checkpoint").mkdir(parents=True)
    (path / "checkpoint" / "latest.json").write_text(json.dumps({"round": 2}))
    partial = cost(configured())
    assert (partial.state, partial.done, partial.whole) == ("partial", 2, whole.whole)
    assert partial.left.up == whole.whole.up // 3
    assert partial.seconds is not None
    assert whole.seconds is not None
    assert partial.seconds < whole.seconds


def test_what_cannot_be_timed_says_why(configured) -> None:
    planned = cost(configured("limit=0.00001"))
    assert planned.seconds is None
    assert planned.note.startswith("round 1, client ")


def test_an_impossible_job_is_an_error(configured) -> None:
    with pytest.raises(ConfigError, match="3000 clients"):
        cost(configured("cohort.clients=3000"))


def test_kinds_differ_in_what_a_client_does(configured) -> None:
    usual = kind_of(configured())
    for same in ("seed=1", "rounds=9", "cohort.fraction=1.0", "every.evaluate=2", "executor=processes"):
        assert kind_of(configured(same)) == usual, same
    for other in ("algo=map", "model.hidden=[8]", "local.batch_size=8", "cohort.clients=9", "optim.lr=0.5"):
        assert kind_of(configured(other)) != usual, other


# ---------------------------------------------------------------- on screen
COST = Cost(
    state="missing", done=0, rounds=5, clients=4, parameters=1000, disk=2_000_000, whole=Amount(300, 4_000, 5_000),
    left=Amount(300, 4_000, 5_000), seconds=100.0, basis="timed",
)  # fmt: skip


def job(number: int, overrides: str, planned: Cost | None, path: str = "") -> SweepJob:
    return SweepJob(
        number, overrides.split(), "planned", path=path or f"runs/{number}",
        result=None if planned is None else asdict(planned), error=None if planned else "ConfigError: no",
    )  # fmt: skip


def screen(jobs: list[SweepJob], width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show_plan(jobs, console)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_list_has_every_job_and_the_total_of_what_is_left() -> None:
    done = replace(COST, state="done", done=5, left=Amount(0, 0, 0), seconds=None, basis=None)
    partial = replace(COST, state="partial", done=3, left=Amount(120, 1600, 2000), seconds=40.0, basis="runs")
    jobs = [job(0, "algo=map seed=0", done), job(1, "algo=map seed=1", partial), job(2, "algo=map seed=2", COST)]
    lines = screen(jobs)
    assert lines[1] == "3 jobs: 1 done, 1 partial, 1 missing"
    assert "1 0 done –" in lines
    assert "2 1 3 done 00:40 runs" in lines
    assert "3 2 missing 01:40 timed" in lines
    same = "in every job: rounds 5, clients per round 4, local steps 300, up 4.00 kB, down 5.00 kB, parameters 1,000, "
    assert same + "disk 2.00 MB" in " ".join(lines)
    assert "to run: 420 local steps, 5.60 kB up, 7.00 kB down" in lines
    assert "time: about 2 min in one process" in lines
    assert any(line.startswith("executor=processes divides it") for line in lines)
    assert any(line.startswith("timed: the local steps") for line in lines)
    assert any(line.startswith("runs: from the seconds") for line in lines)
    assert any(line.startswith("not counted:") for line in lines)


def test_columns_are_what_differs_between_jobs() -> None:
    jobs = [job(0, "algo=a", COST), job(1, "algo=b", replace(COST, parameters=2_000_000))]
    lines = screen(jobs)
    assert "1 a missing 1,000 01:40 timed" in lines
    assert "2 b missing 2,000,000 01:40 timed" in lines


def test_a_swept_setting_has_one_column() -> None:
    jobs = [job(0, "rounds=5", COST), job(1, "rounds=9", replace(COST, rounds=9))]
    assert "2 9 missing 01:40 timed" in screen(jobs)


def test_a_job_that_cannot_run_hides_no_other() -> None:
    lines = screen([job(0, "algo=a", None), job(1, "algo=b", COST)])
    assert lines[1] == "2 jobs: 1 cannot run, 1 missing"
    assert "job 1 cannot run: ConfigError: no" in lines
    assert "1 a error –" in lines
    assert "2 b missing 01:40 timed" in lines


def test_a_job_that_was_not_timed_is_not_forgotten_in_the_total() -> None:
    untimed = replace(COST, seconds=None, basis=None, note="round 1, client 0: not finite")
    lines = screen([job(0, "algo=a", COST), job(1, "algo=b", untimed)])
    assert "time: about 2 min in one process, and 1 job of unknown duration" in lines
    assert "job 2: not timed: round 1, client 0: not finite" in lines


def test_equal_runs_cost_once() -> None:
    lines = screen([job(0, "executor=serial", COST, "runs/a"), job(1, "executor=auto", COST, "runs/a")])
    assert lines[1] == "2 jobs: 1 missing, 1 same run"
    assert "2 auto = job 1 –" in lines
    assert "to run: 300 local steps, 4.00 kB up, 5.00 kB down" in lines


def test_only_jobs_that_cannot_run() -> None:
    lines = screen([job(0, "algo=a", None)])
    assert lines[1] == "1 job: 1 cannot run"
    assert not any(line.startswith("time:") for line in lines)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_list_fits_the_screen_and_loses_nothing(width: int) -> None:
    other = replace(
        COST, rounds=2000, clients=100, parameters=10_000_000, disk=10**9, whole=Amount(987_654, 10**10, 10**11)
    )  # fmt: skip
    jobs = [
        job(0, "data=mnist algo.hpm.weight=0.1 seed=0", COST),
        job(1, "data=cifar10 algo.hpm.weight=1 seed=1", other),
    ]
    console = Console(file=io.StringIO(), width=width)
    show_plan(jobs, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    for number in ("cifar10", "2,000", "100", "987,654", "10.0 GB", "100 GB", "10,000,000", "1.00 GB", "01:40"):
        assert f" {number} " in text.replace("\n", " "), number


def test_a_narrow_list_breaks_headings_between_words() -> None:
    other = replace(COST, clients=100, whole=Amount(987_654, 10**10, 10**11))
    jobs = [job(0, "optim.lr=1 local.epochs=5", COST), job(1, "optim.lr=2 local.epochs=10", other)]
    words = " ".join(screen(jobs, 60)).split()
    assert {"optim.", "lr", "local.", "epochs"} <= set(words)
