from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedexp import build as module
from fedexp.build import build
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.identity import run_id
from fedexp.config.make import make
from fedexp.display import SilentDisplay
from fedexp.errors import ConfigError, PartitionError
from fedexp.partition.base import ClientSplit
from fedexp.partition.union import union
from fedexp.parts import parts
from tests.helpers import played, tiny


def test_partition_seed_gives_the_partition_of_that_run_seed(configured):
    fixed = build(configured("partition.seed=3")).plan.content["partition_digest"]
    assert fixed == build(configured("seed=3")).plan.content["partition_digest"]
    assert fixed != build(configured()).plan.content["partition_digest"]


def test_partition_does_not_depend_on_the_algorithm(configured):
    digests = {build(configured(f"algo={a}")).plan.content["partition_digest"] for a in ("fedavg", "map", "scaffold")}
    assert len(digests) == 1


def test_pool_all_deals_out_everything_and_tests_on_what_clients_hold_out(configured):
    apart, together = build(configured()), build(configured("pool=all"))
    dealt = np.concatenate([np.concatenate([s.train, s.test]) for s in together.splits])
    assert len(dealt) == len(set(dealt)) > sum(len(s.train) + len(s.test) for s in apart.splits)
    held = np.concatenate([s.test for s in together.splits])
    assert len(together.data.test) == len(held)
    assert not set(held) & set(np.concatenate([s.train for s in together.splits]))


def test_pool_all_refuses_a_partition_whose_tests_come_from_the_test_set(configured):
    with pytest.raises(ConfigError, match=r"pool=all needs clients that hold out"):
        build(configured("pool=all", "partition.test=mirror"))


def test_pool_all_tests_nothing_that_some_client_trains_on(configured, tmp_path):
    path = tmp_path / "splits.json"
    for first, words in (([0, 1], None), ([0, 6], "samples that clients train on: 1 sample")):
        splits = [{"train": first, "test": [5]}, {"train": [7, 8], "test": [5, 6]}]
        path.write_text(json.dumps({"clients": splits}))
        asked = configured("pool=all", "partition=file", f"partition.path={path}", "cohort.clients=2", "algo=fedavg")
        if words is None:
            assert len(build(asked).data.test) == 2  # what two clients test on counts once
        else:
            with pytest.raises(ConfigError, match=words):
                build(asked)


def test_a_data_set_without_a_test_set_is_for_methods_without_a_server_model(configured, monkeypatch, tmp_path):
    loaded = module._loaded
    monkeypatch.setattr(
        module, "_loaded", lambda source: replace(loaded(source), test=loaded(source).test.select(torch.arange(0)))
    )
    with pytest.raises(ConfigError, match="data: it has no test set; pool=all makes one"):
        build(configured("algo=fedavg"))
    with pytest.raises(ConfigError, match="data: it has no test set"):
        build(configured("algo=fedper", "evaluate=fedgela"))
    assert len(build(configured("algo=fedavg", "pool=all")).data.test)
    engine = played(tmp_path, "algo=fedper", "rounds=1")
    assert "aggregation" not in engine.records[-1]
    assert 0 < engine.records[-1]["personalization"]["accuracy"] <= 1


def test_every_problem_is_reported_at_once(configured):
    with pytest.raises(ConfigError) as caught:
        build(
            configured("algo=map", "algo.rs.alpha=2", "cohort.fraction=0", "partition=classes", "partition.classes=0")
        )
    text = str(caught.value)
    assert all(part in text for part in ("algo.rs.alpha", "cohort.fraction", "partition.classes"))


def test_a_run_unlike_the_methods_paper_says_so(configured):
    usual, other = (build(configured("algo=fedgela", *more)).plan.content for more in ((), ("evaluate=fedgela",)))
    (said,) = usual["caveats"]
    assert said == (
        "algo: FedGELA's paper has weighting=samples, evaluate=fedgela; this run has weighting=uniform, evaluate=map."
    )
    assert said in usual["notes"]
    assert other["caveats"] == ["algo: FedGELA's paper has weighting=samples; this run has weighting=uniform."]
    alike = build(configured("algo=fedgela", "evaluate=fedgela", "weighting=samples")).plan.content
    assert alike["caveats"] == [] == build(configured("algo=fedavg")).plan.content["caveats"]


def test_the_protocols_that_papers_name_are_there():
    papers = {c.paper for algo in choices_of("algo") for c in parts(composed([f"algo={algo}"]))[1].values() if c.paper}
    assert {p.name for p in papers} == {"MAP", "FedRS", "FedReMa", "FedMR", "FedGELA"}
    names = {choice: make(composed([f"evaluate={choice}"])["evaluate"]).name for choice in choices_of("evaluate")}
    assert all(choice == name for choice, name in names.items())
    assert {p.evaluate for p in papers} == set(names)


# ---------------------------------------------------------------- public samples
def rows(samples):
    return {row.numpy().tobytes() for row in samples.x.flatten(1)}


def test_public_samples_leave_the_test_set_and_go_to_nobody_else(configured):
    plain, made = build(configured()), build(configured("public=100"))
    assert plain.public is None
    assert (len(made.public), len(made.data.test)) == (100, len(plain.data.test) - 100)
    assert rows(made.public) | rows(made.data.test) == rows(plain.data.test)
    assert not rows(made.public) & rows(made.data.train)
    assert made.algorithm.facts.public == 100
    assert made.plan.content["public"] == 100
    assert run_id(made.config) != run_id(plain.config)
    again, other = build(configured("public=100")), build(configured("public=100", "seed=1"))
    assert torch.equal(again.public.x, made.public.x)
    assert not torch.equal(other.public.x, made.public.x)


@pytest.mark.parametrize("more", [("partition.test=mirror",), ("pool=all",)])
def test_public_samples_are_taken_before_anything_is_dealt(configured, more):
    made = build(configured("public=100", *more))
    for client in range(made.data.n_clients):
        dealt = rows(made.data.own_train(client)) | rows(made.data.own_test(client))
        assert not dealt & rows(made.public)
    assert not rows(made.data.test) & rows(made.public)


def test_public_samples_must_leave_something_to_test_on(configured):
    with pytest.raises(ConfigError, match=r"public=5000 takes samples out of the test set, which has 359. Use 358 or"):
        build(configured("public=5000"))


DISTIL = {"_target_": "tests.unit.server.methods.Distil", "steps": 2, "lr": 0.1, "during": ["local"]}


def test_a_methods_server_steps_get_the_runs_public_samples(configured, rundir):
    with pytest.raises(ConfigError, match=r"component 'distil' needs samples at the server.* Add public=500"):
        build({**configured(), "algo": {"distil": DISTIL}})
    experiment = build({**configured("public=40"), "algo": {"distil": DISTIL}})
    engine = experiment.engine(rundir, SilentDisplay())
    engine.open()
    engine.run(experiment.card(rundir))
    assert engine.progress.state.round == 3
    assert rows(engine.public) == rows(experiment.public)


# ---------------------------------------------------------------- centralized
def test_one_client_has_what_all_have(configured):
    apart, together = build(configured()), build(configured("centralized=true"))
    (split,) = together.splits
    for kind in ("train", "test"):
        everyone = np.concatenate([getattr(s, kind) for s in apart.splits])
        np.testing.assert_array_equal(getattr(split, kind), np.sort(everyone))
    facts = together.algorithm.facts
    assert (facts.n_clients, facts.fraction, facts.counts.shape[0]) == (1, 1.0, 1)
    steps = 3 * -(-int(together.data.counts.sum()) // 32)
    said = f"centralized: one client has the samples of all 6; its numbers are those of {steps} steps, 3 epochs over "
    said += "them."
    assert together.plan.content["caveats"] == [said]
    assert said in together.plan.content["notes"]
    assert together.plan.content["cohort"] == {"clients": 1, "per_round": 1}
    assert run_id(together.config) != run_id(apart.config)


def test_a_centralized_run_trains_on_every_sample_in_every_round(tmp_path):
    engine = played(tmp_path, "centralized=true", "algo=map", "evaluate.all_clients=true")
    clients = list(engine.rundir.rows("clients.csv"))
    assert [(r["round"], r["client"]) for r in clients] == [("1", "0"), ("2", "0")]
    assert {int(r["n"]) for r in clients} == {sum(len(s.train) for s in tiny("algo=map").splits)}
    assert {int(r["tested"]) for r in clients} == {sum(len(s.test) for s in tiny("algo=map").splits)}


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ([([0, 1], [2], "train"), ([2, 3], [4], "train")], "would train on 1 samples that it is tested on"),
        ([([0, 1], [2], "train"), ([3], [4], "test")], "some clients are tested on training samples and some on"),
    ],
)
def test_test_sets_that_cannot_be_put_together_are_refused(splits, words):
    with pytest.raises(PartitionError, match=words):
        union([ClientSplit(np.array(train), np.array(test), source) for train, test, source in splits])


def test_a_sample_of_two_owners_is_there_once():
    own = union([ClientSplit(np.array(t), np.array([], dtype=np.int64), "train") for t in ([0, 1], [1, 5])])
    assert own.train.tolist() == [0, 1, 5]
    assert len(own.test) == 0


# ---------------------------------------------------------------- many clients at once
RESNET = ["model=resnet20", "model.hidden=null", "data.size=32"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["loop=batched", "algo=map"], []),
        (["loop=batched", "algo=pfedme"], ["'local' is trained one client after another, because component 'moreau'"]),
        (["loop=batched", "algo=perfedavg"], ["'local' is trained one client after another, because a step takes sev"]),
        (["loop=batched", "algo=fedmr"], ["'local' only clients whose batches have the same size", "component 'mr'"]),
        (["loop=batched", "optim=adam", "algo=fedavg"], []),
        (["loop=batched", "optim=adam", "algo=map"], ["'local'", "'personal' is trained one", "the state of Adam("]),
        (["loop=batched", "algo=fedavg", *RESNET], ["(batch norm)", "slower than loop=fabric on a CPU for convol"]),
        (["loop=batched", "algo=fedavg", "model.hidden=[512,512]"], ["slower than loop=fabric", "301,056 parameters"]),
        (["loop=fabric", "algo=fedavg"], ["loop=batched takes the steps of many clients at once"]),
        (["loop=fabric", "algo=fedgen"], []),
        (["loop=fabric", "algo=fedavg", "cohort.fraction=0.1"], []),
        (["loop=fabric", "algo=fedavg", "model.hidden=[512,512]"], []),
    ],
    ids=str,
)
def test_the_plan_says_what_is_done_for_many_clients_at_once(overrides, said):
    plan = tiny("cohort.clients=20", "cohort.fraction=1", *overrides).plan
    notes = [note for note in plan.content["notes"] if note.startswith("loop")]
    assert bool(notes) == bool(said)
    assert all(any(words in note for note in notes) for words in said), notes


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["limit=3"], "limit is the time of one client"),
        (["probe=[classifier]"], "probe.classifier looks at single steps"),
        (["loop.group=0"], "loop.group"),
    ],
)
def test_what_needs_single_clients_is_refused_where_many_are_trained_at_once(configured, overrides, words):
    with pytest.raises(ConfigError, match=words):
        build(configured("loop=batched", *overrides))
    build(configured("loop=batched", "probe=[spectrum]"))
