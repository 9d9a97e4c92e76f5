"""From run directories to results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

import fedexp
from fedexp.config.hydra_loader import choices_of
from fedexp.reproduce import claims, collect, published, selection
from fedexp.reproduce.collect import NOT_BY_RUNS, ROUNDS_TO_REFERENCE, Outcome, with_computed
from fedexp.reproduce.jobs import jobs_of
from fedexp.reproduce.launch import Launched, check_launcher, finished, launch
from fedexp.reproduce.measure import Measure
from fedexp.reproduce.request import request
from fedexp.reproduce.tables.making import make_table
from fedexp.runs import observations
from fedexp.runs.directory import RunDir


@pytest.fixture
def jobs(paper, tmp_path):
    entry = replace(paper.TABLE, measures=(*paper.TABLE.measures, *paper.OTHER.measures))
    return lambda **words: jobs_of(request(entry, settings="digits/mlp", out=str(tmp_path), **words))


def rounds(*values: float | None, **more: object) -> Outcome:
    """A finished run that was tested in some rounds."""
    records = [{"round": n, "aggregation": {"accuracy": v}} for n, v in enumerate(values, 1) if v is not None]
    return Outcome("done", len(values), result={"rounds": len(values)}, records=records, **more)


@pytest.fixture
def taken(jobs, monkeypatch):
    """What measures take from runs of the two methods, by method and metric."""

    def take(*measures: Measure, fedavg: Outcome | None = None, fedrs: Outcome | None = None):
        by_method = {"FedAvg": fedavg, "FedRS": fedrs}
        monkeypatch.setattr(collect, "outcome", lambda job, _: by_method[job.method.name])
        found = [replace(j, entry=replace(j.entry, measures=measures)) for j in jobs(methods="FedAvg,FedRS")]
        return {(r.method, r.metric): r for r in collect.collect(found)}

    return take


ACCURACY = Measure("accuracy", "aggregation.accuracy", "last round")


def test_a_run_from_nothing_to_its_numbers_and_to_damage(jobs):
    (job,) = jobs(methods="FedAvg")
    assert collect.collect([job]) == []
    result = fedexp.run(job.overrides)
    first, second = collect.collect([job])
    assert (first.metric, second.metric) == ("aggregation", "personalization")
    assert first.value == 100 * result.records[-1]["aggregation"]["accuracy"]
    assert second.value == 100 * max(r["personalization"]["accuracy"] for r in result.records)
    assert (first.status, first.rounds, first.run, first.rule) == ("done", 2, job.run, "last round")
    assert first.partition == result.summary["digests"]["partition"]
    assert first.model == result.summary["digests"]["model"]
    assert first.versions.startswith(f"fedexp {fedexp.__version__}, python ")
    seconds = result.summary["seconds"]
    assert first.seconds == pytest.approx(seconds["elapsed"] - seconds["final"], abs=0.001)

    kept = (job.path / "result.json").read_text()
    (job.path / "result.json").unlink()
    (job.path / "checkpoint").mkdir(exist_ok=True)
    (job.path / "checkpoint" / "latest.json").write_text('{"round": 1}')
    (partial, _) = collect.collect([job])
    assert (partial.status, partial.value, partial.error, partial.rounds) == ("partial", None, "", 1)
    (job.path / "error.txt").write_text("ClientError: round 2, client 1: out of luck\n\nTraceback")
    (failed, _) = collect.collect([job])
    assert (failed.status, failed.error) == ("failed", "ClientError: round 2, client 1: out of luck")
    (job.path / "error.txt").unlink()
    (job.path / "result.json").write_text(kept)
    (job.path / "metrics.jsonl").write_text("{}\n")
    (damaged, _) = collect.collect([job])
    assert (damaged.status, damaged.value) == ("failed", None)
    assert "damaged" in damaged.error


@pytest.mark.parametrize(
    ("error", "status"), [("DiskError: full", "failed"), ("ClientError: loss term 'ce' is not finite.", "diverged")]
)
def test_a_run_that_could_not_begin_says_why(jobs, error, status):
    (job,) = jobs(methods="FedAvg")
    (first, _) = collect.collect([job], {job.path: error})
    assert (first.status, first.error, first.value) == (status, error, None)


def test_a_round_that_was_not_tested_counts_as_one(taken):
    window = Measure("late", "aggregation.accuracy", "mean of the last 5 rounds")
    found = taken(ACCURACY, window, fedavg=rounds(0.9, None, 0.2, None, 0.4, None))
    assert found["FedAvg", "accuracy"].value == pytest.approx(40)
    assert found["FedAvg", "late"].value == pytest.approx(30)


def test_a_method_without_the_number_has_failed_and_says_so(taken):
    found = taken(Measure("PA", "personalization.PA", "result"), fedavg=rounds(0.5))
    assert (found["FedAvg", "PA"].status, found["FedAvg", "PA"].value) == ("failed", None)
    assert "no PA" in found["FedAvg", "PA"].error


def test_a_number_that_a_scene_cannot_have_is_not_asked_for(jobs, monkeypatch):
    """A client with all classes has no vectors of missing ones: that is no failure."""
    monkeypatch.setattr(collect, "outcome", lambda *_: rounds(0.5))
    other = Measure("norm_missing", "probes.classifier.trained.norm_missing", "last round")
    (job,) = jobs(methods="FedAvg", seeds="0")
    entry = replace(job.entry, measures=(ACCURACY, other), numbers=(), lacks=((job.scene.name, other.metric),))
    assert [r.metric for r in collect.collect([replace(job, entry=entry)])] == [ACCURACY.metric]
    shown = {cell.metric for cell in make_table(request(entry), {}, []).cells if cell.setting == job.scene.name}
    assert shown == {ACCURACY.metric}


def test_numbers_of_several_clients_count_by_their_mean(taken):
    known = rounds(0.5)
    known = replace(known, records=[{"round": 1, "numbers": {"heads.gaps": [1.0, 3.0]}}])
    found = taken(Measure("gap", "numbers.heads.gaps", "last round", percent=False), fedavg=known)
    assert found["FedAvg", "gap"].value == 2.0


def test_rounds_to_the_best_of_fedavg(taken):
    measure = Measure("rounds_to_target", "aggregation.accuracy", ROUNDS_TO_REFERENCE, percent=False)
    found = taken(measure, fedavg=rounds(0.1, 0.6, 0.5), fedrs=rounds(0.2, 0.3, 0.6))
    assert found["FedAvg", "rounds_to_target"].value == 3
    assert found["FedRS", "rounds_to_target"].value == 3
    found = taken(measure, fedavg=rounds(0.1, 0.6, 0.5), fedrs=rounds(0.2, 0.3, 0.4))
    assert found["FedRS", "rounds_to_target"].status == "failed"
    assert taken(measure, fedrs=rounds(0.9)) == {}  # there is nothing to reach


def test_leads_are_worked_out_for_each_seed_and_only_from_what_they_need(taken, paper):
    lead = Measure("lead", "accuracy", "lead over FedAvg")
    best = Measure("best", "accuracy", "lead over the best other method")
    entry = replace(paper.TABLE, measures=(ACCURACY, lead, best), methods=paper.METHODS[:2])
    found = list(taken(ACCURACY, lead, fedavg=rounds(0.5), fedrs=rounds(0.7)).values())
    both = {(r.method, r.metric): r.value for r in with_computed(entry, found)}
    assert both["FedRS", "lead"] == both["FedRS", "best"] == pytest.approx(20)
    more = replace(entry, methods=paper.METHODS[:3])  # of which one is missing: is it the best?
    assert {r.metric for r in with_computed(more, found) if r.method == "FedRS"} == {"accuracy", "lead"}
    better = replace(found[0], method="FedAvg samples", value=99.0)  # another reading is no other method
    assert {(r.method, r.metric): r.value for r in with_computed(entry, [*found, better])}.items() >= both.items()
    alone = with_computed(entry, [r for r in found if r.method == "FedRS"])
    assert [r.metric for r in alone] == ["accuracy"]
    other_seed = [replace(r, seed=1) if r.method == "FedAvg" else r for r in found]
    assert {r.metric for r in with_computed(entry, other_seed) if r.method == "FedRS"} == {"accuracy"}
    shorter = [replace(r, reduced="1 of 2 rounds") if r.method == "FedAvg" else r for r in found]
    assert {r.metric for r in with_computed(entry, shorter) if r.method == "FedRS"} == {"accuracy"}


def test_every_rule_of_the_papers_and_of_claims_is_known():
    for entry in published.entries().values():
        extra = [m for method in entry.rows for m in claims.measures(entry, method)]
        for measure in (*entry.measures, *extra):
            known = measure.computed or measure.rule in (ROUNDS_TO_REFERENCE, *NOT_BY_RUNS, *selection.RULES)
            assert known, (entry.id, measure)


# What probes have seen


def test_numbers_of_probes_are_taken_from_the_runs_that_have_them(jobs, tmp_path):
    (plain,) = jobs(methods="FedAvg")
    measures = (Measure("norm", "probes.classifier.trained.norm_observed", "last round", percent=False),)
    entry = replace(plain.entry, measures=measures, probes=("classifier",))
    (job,) = jobs_of(request(entry, settings="digits/mlp", out=str(tmp_path), methods="FedAvg"))
    assert job.path == plain.path
    assert "probe=[classifier]" in job.overrides
    assert "'probe=[classifier]'" in job.command
    assert job.reduced == plain.reduced

    fedexp.run(plain.overrides)
    assert collect.collect([job]) == []  # made without the probe: as if it had not been run
    assert (finished(plain), finished(job)) == (True, False)

    assert launch([job], check_launcher([], 1), Console(quiet=True)) == Launched({})
    path = job.path
    assert finished(job)
    (result,) = collect.collect([job])
    rows = [row for row in RunDir(path).observations() if row["round"] == 2 and row["name"] == "trained"]
    assert len(rows) > 1
    assert result.value == pytest.approx(sum(row["values"]["norm_observed"] for row in rows) / len(rows))
    assert result.status == "done"


def test_a_setting_of_a_probe_changes_no_number(jobs):
    (job,) = jobs(methods="FedAvg", overrides=["probe=[cost]", "probe.cost.every=2"])
    (plain,) = jobs(methods="FedAvg")
    assert (job.reduced, job.path, job.command) == (plain.reduced, plain.path, plain.command)


def test_every_number_of_a_probe_that_entries_name_is_one_that_it_writes(tmp_path):
    entries = published.entries().values()
    named = {m.of.removeprefix("probes.") for e in entries for m in e.measures if m.of.startswith("probes.")}
    used = {probe for entry in entries for probe in entry.probes}
    assert used <= set(choices_of("probe"))
    for entry in (e for e in entries if e.kind == "probe" and e.scenes):
        seen = [m.of for m in entry.measures if m.of.startswith("probes.")]
        assert {of.split(".")[1] for of in seen} <= set(entry.probes)
        assert seen
    found: set[str] = set()
    for features, probes in ((2, used - {"sphere"}), (3, {"sphere"})):
        path = fedexp.run([
            "data=digits", f"model.hidden=[{features}]", "partition=explicit", "cohort.clients=3", "cohort.fraction=1",
            "partition.classes=[[0,1,2],[0,1,2],[3,4,5,6]]", "rounds=1", "local.epochs=1", "executor=serial",
            "loop=fabric", "evaluate.all_clients=false", f"probe=[{','.join(sorted(probes))}]", f"out={tmp_path}",
        ]).path  # fmt: skip
        found |= observations.means(RunDir(path).observations()).keys()
    assert named <= found
