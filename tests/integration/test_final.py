"""What comes after the last round: it is seen, it can be chosen, and it never costs a run."""

from __future__ import annotations

import csv
import gc
import io
import json
import weakref

import pytest
from rich.console import Console

import fedexp
from fedexp.build import Experiment, build
from fedexp.client.worker import Worker
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.engine import Engine
from fedexp.errors import ClientError, ConfigError
from fedexp.evaluate.map import MapProtocol
from fedexp.runs.directory import RunDir

ALL = "evaluate.all_clients=true"


def said(overrides: list[str]) -> tuple[fedexp.Result, str]:
    console = Console(file=io.StringIO(), width=100)
    result = fedexp.run(overrides, console=console)
    return result, console.file.getvalue()


@pytest.fixture
def trained_rounds(monkeypatch):
    """Notes each client that is trained in a round."""
    noted: list[tuple[int, int]] = []
    real = Worker._round

    def work(self, job, spent):
        if not job.final:
            noted.append((job.round, job.client))
        return real(self, job, spent)

    monkeypatch.setattr(Worker, "_round", work)
    return noted


def test_a_client_that_fails_after_the_last_round_is_named_and_left_out(small, monkeypatch):
    real = Worker._round

    def work(self, job, spent):
        if job.final and job.client == 2:
            raise ClientError("after the last round, client 2, phase 'local': loss term 'ce' is not finite.")
        return real(self, job, spent)

    monkeypatch.setattr(Worker, "_round", work)
    result, text = said(small(ALL))  # faults=raise is the default
    assert result.status == "finished"
    detail = result.personalization["all_clients_detail"]
    assert detail["failed"] == {"2": "after the last round, client 2, phase 'local': loss term 'ce' is not finite."}
    assert len(detail["clients"]) == 5
    assert "left out: after the last round, client 2" in text


@pytest.mark.parametrize("stop", [RuntimeError("out of something"), KeyboardInterrupt()])
def test_the_rounds_are_on_file_before_and_the_same_command_does_the_rest(small, monkeypatch, trained_rounds, stop):
    def conclude(self, engine):
        raise stop

    whole = fedexp.run(small(ALL, "name=whole"))
    expected = trained_rounds[:]
    trained_rounds.clear()
    console = Console(file=io.StringIO(), width=100)
    with monkeypatch.context() as patch:
        patch.setattr(MapProtocol, "conclude", conclude)
        with pytest.raises(type(stop)):
            fedexp.run(small(ALL), console=console)
    assert trained_rounds == expected
    path = run_path(composed(small(ALL)))
    on_file = json.loads((path / "result.json").read_text())
    assert on_file["status"] == "trained"
    assert on_file["aggregation"] == whole.aggregation
    assert (path / "model.safetensors").exists()
    assert "mean of last" in console.file.getvalue()
    assert "the same command does what comes after them" in console.file.getvalue()
    result = fedexp.run(small(ALL))
    assert trained_rounds == expected  # and no round was trained again
    assert (result.status, result.personalization) == ("finished", whole.personalization)
    assert result.summary["digests"] == whole.summary["digests"]


def test_damage_before_the_last_pass_costs_no_more_than_the_rounds_since_a_checkpoint(small, monkeypatch, caplog):
    def conclude(self, engine):
        raise KeyboardInterrupt

    settings = (ALL, "every.checkpoint=1")
    whole = fedexp.run(small(*settings, "name=whole"))
    with monkeypatch.context() as patch:
        patch.setattr(MapProtocol, "conclude", conclude)
        with pytest.raises(KeyboardInterrupt):
            fedexp.run(small(*settings))
    path = run_path(composed(small(*settings)))
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:-1]))
    result = fedexp.run(small(*settings))
    assert (result.status, result.summary["digests"]) == ("finished", whole.summary["digests"])
    assert "continues from the checkpoint before" in caplog.text


def test_another_way_out_is_the_same_run(small, monkeypatch, trained_rounds):
    """Whoever does not want to wait for the last pass loses nothing."""

    def conclude(self, engine):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MapProtocol, "conclude", conclude)
        with pytest.raises(KeyboardInterrupt):
            fedexp.run(small(ALL))
    before = trained_rounds[:]
    result = fedexp.run(small("evaluate.all_clients=false"))
    assert result.status == "finished"
    assert "all_clients" not in result.personalization
    assert trained_rounds == before


def test_a_number_of_clients_drawn_by_the_seed(small):
    def asked(*more: str) -> list[int]:
        result = fedexp.run(small("evaluate.all_clients=3", *more))
        return result.personalization["all_clients_detail"]["asked"]

    first = asked()
    assert len(set(first)) == 3
    assert asked("force=true") == first
    assert any(asked(f"seed={seed}") != first for seed in range(1, 5))
    assert fedexp.run(small("evaluate.all_clients=99", "name=x")).personalization["all_clients_detail"]["asked"] == [
        *range(6)
    ]


def test_a_finished_run_says_what_it_was_finished_with(small, trained_rounds):
    fedexp.run(small("algo=scaffold"))  # evaluate.all_clients=false
    trained_rounds.clear()
    result, text = said(small(ALL, "algo=scaffold"))
    assert result.status == "skipped"
    assert "it was finished with evaluate.all_clients=0, not 6" in text
    assert "keep=all" in text
    assert trained_rounds == []


def test_a_finished_run_whose_clients_keep_nothing_is_measured_further(small, trained_rounds):
    fedexp.run(small("algo=fedavg"))  # evaluate.all_clients=false
    trained_rounds.clear()
    result = fedexp.run(small(ALL, "algo=fedavg"))
    assert result.personalization["all_clients"] > 0
    assert trained_rounds == []


def test_a_finished_run_says_on_how_many_samples_its_rounds_were_measured(small, trained_rounds):
    first = fedexp.run(small("evaluate.missing=50"))
    trained_rounds.clear()
    result, text = said(small("evaluate.missing=true"))
    assert (result.status, result.summary) == ("skipped", first.summary)
    assert "were measured with evaluate.missing=50, evaluate.missing_clients=10, not with evaluate.missing=true" in text
    assert "evaluate.missing_clients=2" in said(small("evaluate.missing=50", "evaluate.missing_clients=2"))[1]
    assert "not with evaluate.missing=false" in said(small("evaluate.missing=false"))[1]
    assert "note" not in said(small("evaluate.missing=50"))[1]
    assert trained_rounds == []


def test_another_pass_leaves_it_on_record_how_the_rounds_were_measured(small, trained_rounds):
    fedexp.run(small("evaluate.missing=50", "algo=fedavg"))
    trained_rounds.clear()
    for _ in range(2):
        assert "were measured with evaluate.missing=50" in said(small(ALL, "algo=fedavg", "evaluate.missing=true"))[1]
    assert trained_rounds == []


def test_rounds_that_are_measured_otherwise_than_those_before_say_so(small, monkeypatch):
    def stops(engine, sent, work):
        if sent.round == 1:
            raise KeyboardInterrupt
        return update(engine, sent, work)

    update = Engine.update
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "update", stops)
        with pytest.raises(KeyboardInterrupt):
            fedexp.run(small("evaluate.missing=50"))
    assert "so far were measured with evaluate.missing=50" in said(small("evaluate.missing=20"))[1]
    assert "so far were measured with evaluate.missing=20" in said(small("evaluate.missing=50", "rounds=3"))[1]


def test_a_run_that_was_begun_before_there_were_measures_of_missing_classes_goes_on(small, monkeypatch):
    """Its clients.csv has no columns for them."""
    overrides, update = small("rounds=4"), Engine.update

    def stops(engine, sent, work):
        if sent.round == 2:
            raise KeyboardInterrupt
        return update(engine, sent, work)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "update", stops)
        patch.setattr("fedexp.runs.rows.MEASURES", ())
        with pytest.raises(KeyboardInterrupt):
            fedexp.run([*overrides, "evaluate.missing=false"])
    result = fedexp.run(overrides)
    rows = list(csv.DictReader((result.path / "clients.csv").open()))
    assert not any(column and column.startswith("missing/") for row in rows for column in row)
    assert {row["round"] for row in rows} == {"1", "2", "3", "4"}
    assert all(0 < float(row["loss/local/ce"]) < 99 for row in rows)
    assert ["missing" in record for record in result.records] == [False, False, True, True]
    assert fedexp.run(overrides).status == "skipped"


def test_what_is_kept_serves_another_last_pass(small, trained_rounds):
    fedexp.run(small("keep=all"))
    trained_rounds.clear()
    result = fedexp.run(small("keep=all", ALL))
    assert result.status == "finished"
    assert "all_clients" in result.personalization
    assert trained_rounds == []


def test_an_earlier_last_pass_stays_until_the_new_one_is_done(small, monkeypatch, trained_rounds):
    def conclude(self, engine):
        raise KeyboardInterrupt

    first = fedexp.run(small("keep=all", "evaluate.all_clients=2"))
    trained_rounds.clear()
    with monkeypatch.context() as patch:
        patch.setattr(MapProtocol, "conclude", conclude)
        with pytest.raises(KeyboardInterrupt):
            fedexp.run(small("keep=all", ALL))
    again = fedexp.run(small("keep=all", "evaluate.all_clients=2"))
    assert (again.status, again.personalization) == ("skipped", first.personalization)
    whole = fedexp.run(small("keep=all", ALL))
    assert len(whole.personalization["all_clients_detail"]["asked"]) == 6
    assert trained_rounds == []


def test_a_kill_while_another_last_pass_is_written_costs_that_pass_only(small, monkeypatch, trained_rounds):
    def killed(self, result):
        raise KeyboardInterrupt

    fedexp.run(small("keep=all", "evaluate.all_clients=2"))
    trained_rounds.clear()
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "conclude", killed)
        with pytest.raises(KeyboardInterrupt):
            fedexp.run(small("keep=all", ALL))
    whole = fedexp.run(small("keep=all", ALL))
    assert len(whole.personalization["all_clients_detail"]["asked"]) == 6
    assert trained_rounds == []


@pytest.mark.parametrize("less", ["evaluate.all_clients=false", "evaluate.all_clients=6"])
def test_what_covers_what_is_asked_for_is_shown_without_a_word(small, less):
    fedexp.run(small("keep=all", ALL))
    result, text = said(small("keep=all", less))
    assert result.status == "skipped"
    assert "note" not in text


def test_a_share_of_the_clients_is_not_called_all(small):
    _, text = said(small("evaluate.all_clients=2"))
    assert "after the last round: 2 of 6 clients once more" in text
    assert "2 of 6 clients\n" in text
    assert "all clients" not in text


def test_fine_tuning_is_not_what_all_clients_leaves_out(small):
    more = ("evaluate=fedgela", "cohort.fraction=0.2", "rounds=1", "plan=true")
    _, text = said(small(*more, "evaluate.all_clients=false"))
    assert "clients fine-tuned after the last round: 6, each for evaluate.finetune_epochs=10" in " ".join(text.split())
    assert "all_clients=false" not in text


@pytest.mark.parametrize(("algo", "noted"), [("fedper", False), ("fedavg", True)])
def test_fine_tuning_matters_to_methods_that_do_it(small, algo, noted):
    settings = (f"algo={algo}", "evaluate=fedgela", "evaluate.all_clients=false", "rounds=1")
    fedexp.run(small(*settings, "evaluate.finetune_epochs=1"))
    result, text = said(small(*settings, "evaluate.finetune_epochs=2"))
    assert (result.status == "skipped" and "finetune_epochs" not in text) is not noted


@pytest.mark.parametrize(
    ("kind", "screen"),
    [
        *((kind, None) for kind in ("loop=trainer", "loop=fabric", "loop=batched", "executor=processes")),
        *(("loop=fabric", {"force_terminal": terminal}) for terminal in (True, False)),
    ],
)
def test_the_data_set_goes_with_the_run(small, monkeypatch, kind, screen):
    """At once: Python seldom looks for cycles, and a sweep of many runs in one process would keep many data sets."""
    seen = []
    engine_of = Experiment.engine

    def engine(experiment, *given):
        seen.append(weakref.ref(experiment.data.train.x))
        return engine_of(experiment, *given)

    monkeypatch.setattr(Experiment, "engine", engine)
    gc.disable()
    try:
        fedexp.run(small("rounds=1", kind), console=screen and Console(file=io.StringIO(), **screen))
        assert [kept() for kept in seen] == [None]
    finally:
        gc.enable()


def test_what_cannot_begin_leaves_nothing_behind(small, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"^out: .* is not a folder"):
        fedexp.run([*small(), "out=/dev/null/x"])
    monkeypatch.setenv("FEDEXP_CORES", "x")
    with pytest.raises(ConfigError, match="FEDEXP_CORES"):
        fedexp.run(small("executor=processes"))
    assert list(tmp_path.iterdir()) == []


def test_means_over_another_number_of_rounds_come_from_the_records(small, trained_rounds):
    whole = fedexp.run(small())
    trained_rounds.clear()
    two = fedexp.run(small("evaluate.window=2"))
    accuracies = [r["aggregation"]["accuracy"] for r in whole.records]
    assert two.aggregation["mean"] == pytest.approx(sum(accuracies[-2:]) / 2)
    assert two.aggregation["window"] == 2
    assert two.path == whole.path
    assert trained_rounds == []


def test_much_work_after_the_last_round_is_said_beforehand(small):
    _, text = said(small(ALL, "plan=true", "cohort.fraction=0.2", "rounds=1"))
    flat = " ".join(text.split())
    assert "trained and tested once more after the last round: 6, which is about 86 % of all training" in flat
    _, text = said(small(ALL, "plan=true", "rounds=100"))
    assert "once more" not in text


def test_tests_for_missing_classes_that_take_longer_than_training_are_said_beforehand(small):
    two_epochs = small("plan=true", "cohort.clients=20", "local.epochs=2")

    def noted(*more: str) -> str:
        return " ".join(said([*two_epochs, *more])[1].split())

    config = composed(two_epochs)
    cohort = int(config["cohort"]["fraction"] * 20)
    trained = 2 * float(build(config).data.counts.sum()) / 20 * cohort
    tested = 300 * cohort
    assert 2 * trained < tested < 3 * trained
    assert (
        f"tested on {tested:,} samples of the global test set in a round, but train on about {trained:,.0f}." in noted()
    )
    assert "evaluate.missing:" not in noted("evaluate.missing_clients=1")
    for less in ("evaluate.missing=200", "every.evaluate=2", "evaluate.missing=false", "local.epochs=3"):
        assert "evaluate.missing:" not in noted(less)
    assert f"tested on {359 * cohort:,} samples" in noted("evaluate.missing=true")


def test_the_last_pass_is_seen(small):
    _, text = said(small(ALL))
    assert "after the last round: all clients once more" in text
    assert text.startswith("reading digits\n")


def test_the_cohorts_can_be_held_while_the_seed_changes(small):
    def cohorts(*more: str) -> list[tuple[str, str]]:
        from fedexp.runs.directory import RunDir

        rows = RunDir(fedexp.run(small(*more)).path).rows("clients.csv")
        return [(row["round"], row["client"]) for row in rows]

    held = ("cohort.seed=7", "partition.seed=7")
    assert cohorts(*held, "seed=1") == cohorts(*held, "seed=2")
    assert cohorts("seed=1") != cohorts("seed=2")


def test_the_papers_scenes_clip_as_the_authors_code_does():
    assert composed([])["local"]["clip"] == 100
    assert composed(["experiment=map/fmnist_mlpnet"])["local"]["clip"] == 100
