"""FedReMa: soft logits, relativity, MDS, the critical co-learning period, eq. 6, 7 and 10; alignment, alternation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedexp.algos import fedrema
from fedexp.algos.alternate import Alternate
from fedexp.algos.fedrema import RelativityHeads, most_relevant
from fedexp.algos.mixed_heads import mixed
from fedexp.algos.prototypes import Align, ClassMeans
from fedexp.algos.scaffold import Scaffold
from fedexp.client.optim import Sgd
from fedexp.core.seeding import torch_rng
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLIENTS, play, trial_after
from tests.helpers import Recorder, advanced, array, jobs_of, opened, played, round_of, served, tiny, work

HEADS = {"heads": RelativityHeads()}


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def matrix(row, own):
    """A relativity matrix whose row ``own`` is given."""
    s = np.eye(len(row))
    s[own] = row
    return torch.tensor(s)


def uplinks(engine, cohort, seed=0, spread=3.0):
    rng = torch.Generator().manual_seed(seed)
    state, travelling = engine.progress.state, engine.algorithm.travelling
    out = {}
    for client in cohort:
        noisy = {k: v + spread * torch.randn(v.shape, generator=rng) for k, v in state.model.items()}
        head = {k: v for k, v in noisy.items() if k.startswith("classifier")}
        out[client] = {"model": {k: noisy[k] for k in travelling}, "heads.head": head}
    return out


def sizes_of(engine, cohort):
    return array(engine.algorithm.facts.counts.sum(1))[list(cohort)]


def head_of(sent, client):
    return array(sent[client]["heads.head"]["classifier.weight"])


# ---------------------------------------------------------------- MDS
@pytest.mark.parametrize(
    ("row", "own", "peers", "gap"),
    [
        ((0.10, 0.12, 0.15, 0.80, 0.85, 1.0), 5, {3, 4, 5}, 0.65),
        ((0.2, 0.3, 1.0), 2, {1, 2}, 0.1),
        ((0.80, 1.0, 0.12, 0.85, 0.15, 0.10), 1, {0, 1, 3}, 0.65),
        ((1.0, 0.9, 0.1, 0.2), 0, {0, 1}, 0.7),
        ((0.5, 0.1, 1.0, 0.11, 0.12), 2, {0, 2}, 0.38),
        ((0.90, 0.91, 0.92, 0.1, 1.0), 4, {0, 1, 2, 4}, 0.8),
    ],
)
def test_mds_takes_those_above_the_largest_gap(row, own, peers, gap):
    """Alg. 1 with the set above the gap; the gap to itself is not looked at."""
    chosen, gaps = most_relevant(matrix(row, own))
    assert {int(j) for j in chosen[own].nonzero()} == peers
    assert float(gaps[own]) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("row", "own", "peers", "gap"),
    [
        ((0.10, 0.12, 0.15, 0.80, 0.85, 1.0), 5, {2, 3, 4, 5}, 0.65),  # 2 is below the gap
        ((0.2, 0.3, 1.0), 2, {1, 2}, 0.7),  # the gap to itself is the largest
        ((0.80, 1.0, 0.12, 0.85, 0.15, 0.10), 1, {0, 1, 3, 4}, 0.65),
        ((0.5, 0.1, 1.0, 0.11, 0.12), 2, {0, 2}, 0.5),
        ((0.90, 0.91, 0.92, 0.1, 1.0), 4, {0, 1, 2, 3, 4}, 0.8),
    ],
)
def test_mds_as_printed(row, own, peers, gap):
    """Alg. 1 to the letter: m = argmax over all K - 1 gaps, A = {id_m, ..., id_K}."""
    chosen, gaps = most_relevant(matrix(row, own), printed=True)
    order = np.argsort(row)
    steps = np.diff(np.sort(row))
    assert {int(j) for j in chosen[own].nonzero()} == peers == set(order[steps.argmax() :])
    assert float(gaps[own]) == pytest.approx(gap)
    assert steps.max() == pytest.approx(gap)


def test_mds_never_leaves_a_client_alone_or_out():
    rng = np.random.default_rng(0)
    for m in (3, 4, 9):
        answers = rng.random((m, 5))
        unit = answers / np.linalg.norm(answers, axis=1, keepdims=True)
        s = unit @ unit.T
        chosen, gaps = most_relevant(torch.tensor(s))
        assert (chosen.diagonal() == 1).all()
        assert (chosen.sum(1) >= 2).all()
        for k in range(m):
            steps = np.diff(np.sort(s[k]))[:-1]
            assert float(gaps[k]) == pytest.approx(steps.max())
            above = set(np.argsort(s[k])[steps.argmax() + 1 :])
            assert {int(j) for j in chosen[k].nonzero()} == above
    same, gaps = most_relevant(torch.ones(4, 4))
    assert (same.diagonal() == 1).all()
    assert gaps.tolist() == [0, 0, 0, 0]


# ---------------------------------------------------------------- a round in the period
@pytest.mark.parametrize("mds", ["above", "printed"])
@pytest.mark.parametrize("peers", ["samples", "uniform"])
def test_a_round_written_out(peers, mds):
    """One feature in [0, 1) for all, softmax at M = 0.5, cosines, MDS, eq. 7 by id; eq. 6 for the features; G."""
    components = {"heads": RelativityHeads(peers=peers, mds=mds)}
    engine = trial_after(components, rounds=0)
    cohort = [0, 1, 3, 4]
    sent = uplinks(engine, cohort)
    after = advanced(components, sent, engine=engine)
    new = after.state
    feature = array(torch.rand(1, 8, generator=torch_rng(0, "heads", "feature", 0)))[0]
    assert 0 <= feature.min() < feature.max() < 1
    p = np.stack([softmax(head_of(sent, c) @ feature / 0.5) for c in cohort])
    s = p @ p.T / np.outer(np.linalg.norm(p, axis=1), np.linalg.norm(p, axis=1))
    n = sizes_of(engine, cohort)
    weight = n if peers == "samples" else np.ones(4)
    counts, gaps = np.zeros((CLIENTS, CLIENTS)), []
    for i, client in enumerate(cohort):
        order = np.argsort(s[i])
        steps = np.diff(s[i][order])
        steps = steps if mds == "printed" else steps[:-1]
        gaps.append(steps.max())
        chosen = order[steps.argmax() + (0 if mds == "printed" else 1) :]
        mean = sum(weight[j] * head_of(sent, cohort[j]) for j in chosen) / weight[chosen].sum()
        np.testing.assert_allclose(
            array(new.mailboxes["heads.head"][client]["classifier.weight"]), mean, rtol=1e-4, atol=1e-5
        )
        counts[client, [cohort[j] for j in chosen]] += 1
    assert new.slots["heads.chosen"]["value"].tolist() == counts.tolist()
    assert float(new.slots["heads.period"]["largest"]) == pytest.approx(np.mean(gaps), rel=1e-4)
    assert after.numbers == {
        "heads.open": 1.0, "heads.rounds": 1.0, "heads.gaps": pytest.approx(gaps, rel=1e-4),
        "heads.peers": (counts[cohort].sum(1) - 1).tolist(), "heads.map": counts[cohort].tolist(),
    }  # fmt: skip
    body = sum(w * array(sent[c]["model"]["features.1.weight"]) for w, c in zip(n, cohort, strict=True)) / n.sum()
    np.testing.assert_allclose(array(new.model["features.1.weight"]), body, rtol=1e-4, atol=1e-5)
    assert torch.equal(new.model["classifier.weight"], engine.progress.state.model["classifier.weight"])


def test_relativity_is_symmetric_with_ones_and_alike_heads_are_alike():
    engine = trial_after(HEADS, rounds=0)
    seen = []

    def spy(s, *, printed):
        seen.append(s)
        return torch.eye(len(s)), torch.tensor(0.1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedrema, "most_relevant", spy)
        sent = uplinks(engine, range(4))
        sent[2]["heads.head"] = sent[0]["heads.head"]
        served(HEADS, sent, engine=engine)
        several = {"heads": RelativityHeads(draws=16)}
        served(several, sent, engine=trial_after(several, rounds=0))
    for s in seen:
        assert torch.allclose(s, s.T)
        assert torch.allclose(s.diagonal(), torch.ones(4, dtype=s.dtype))
        assert s[0, 2] == pytest.approx(1.0)
        assert torch.allclose(s[0], s[2])
        assert ((s >= 0) & (s <= 1 + 1e-9)).all()
    assert not torch.allclose(seen[0], seen[1])


def test_order_of_uploads_changes_nothing():
    engine = trial_after(HEADS, rounds=0)
    sent = uplinks(engine, range(5))
    backwards = dict(reversed(sent.items()))
    one, two = served(HEADS, sent, engine=engine), served(HEADS, backwards, engine=engine)
    for client in range(5):
        assert digest({"": one.mailboxes["heads.head"][client]}) == digest({"": two.mailboxes["heads.head"][client]})
    assert digest(one.slots) == digest(two.slots)


def test_clusters_find_each_other():
    """Clients 0, 1, 2 answer class 0, clients 3, 4 class 3: each mixes with its own kind."""
    engine = trial_after(HEADS, rounds=0)
    sent = uplinks(engine, range(5), spread=0.01)
    for client in range(5):
        sent[client]["heads.head"]["classifier.weight"][0 if client < 3 else 3] += 1.0
    chosen = served(HEADS, sent, engine=engine).slots["heads.chosen"]["value"]
    kind = torch.tensor([0, 0, 0, 1, 1])
    assert ((chosen > 0) <= (kind[:, None] == kind[None, :])).all()


# ---------------------------------------------------------------- the period
def period(monkeypatch, gaps, delta, cohort=(0, 1, 2)):
    """Plays rounds whose mean gaps are given; returns the states and what was sent."""
    components = {"heads": RelativityHeads(delta=delta)}
    engine = trial_after(components, rounds=0)
    given = iter(gaps)
    chosen = torch.tensor([[1.0, 1, 0], [0, 1, 1], [0, 1, 1]])
    monkeypatch.setattr(fedrema, "most_relevant", lambda s, printed: (chosen, torch.tensor(next(given))))
    states, sent = [engine.progress.state], []
    for t in range(len(gaps)):
        sent.append(uplinks(engine, cohort, seed=t))
        states.append(served(components, sent[-1], engine=engine, state=states[-1]))
    return engine, states[1:], sent


def test_period_ends_once_and_for_good(monkeypatch):
    """Gaps 1, .8, .6, .45 with delta .5: rounds 1 to 4 by eq. 7, the fourth ends it; round 5 on by eq. 10."""
    engine, states, sent = period(monkeypatch, [1.0, 0.8, 0.6, 0.45, 5.0, 5.0], 0.5)
    assert [bool(s.slots["heads.period"]["open"]) for s in states] == [True, True, True, False, False, False]
    assert float(states[-1].slots["heads.period"]["rounds"]) == 4
    counts = [s.slots["heads.chosen"]["value"][:3, :3].tolist() for s in states]
    assert counts[3] == [[4, 4, 0], [0, 4, 4], [0, 4, 4]]
    assert counts[5] == counts[4] == counts[3]
    n = sizes_of(engine, range(3))
    for t, state in enumerate(states):
        heads = [head_of(sent[t], c) for c in range(3)]
        by = n[:2] if t < 4 else np.array([4.0, 4.0])
        mean = (by[0] * heads[0] + by[1] * heads[1]) / by.sum()
        np.testing.assert_allclose(
            array(state.mailboxes["heads.head"][0]["classifier.weight"]), mean, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("gaps", "delta", "lasts"),
    [
        ([0.2, 0.4, 0.21, 0.19, 0.3], 0.5, 4),  # against the largest so far, not the first
        ([0.4, 0.2, 0.9], 0.5, 2),  # equal to delta times the largest: eq. 9 asks for more
        ([0.0, 0.0, 0.3, 0.3], 0.5, 4),  # no gap at all is not a fall
        ([0.4, 0.1, 0.01, 0.001], 0.0, 4),  # never
        ([0.4, 0.1, 0.0, 0.2], 0.0, 3),  # zero is not more than zero times the largest
        ([0.4, 0.5, 0.6], 1.0, 1),  # nothing is more than its own largest
    ],
)
def test_when_the_period_ends(monkeypatch, gaps, delta, lasts):
    _, states, _ = period(monkeypatch, gaps, delta)
    assert float(states[-1].slots["heads.period"]["rounds"]) == lasts


def test_eq_10_weights():
    rng = torch.Generator().manual_seed(0)
    heads = {c: {"w": torch.randn(3, 2, generator=rng), "n": torch.tensor(c)} for c in (1, 4, 7)}
    values = np.stack([array(h["w"]) for h in heads.values()])
    g = torch.tensor([[1.0, 1, 1], [3, 1, 0], [0, 0, 0]])
    new = mixed(heads, g)
    np.testing.assert_allclose(array(new[1]["w"]), values.mean(0), rtol=1e-5)
    np.testing.assert_allclose(array(new[4]["w"]), (3 * values[0] + values[1]) / 4, rtol=1e-5)
    assert torch.equal(new[7]["w"], heads[7]["w"])  # G does not know it: its own
    assert [int(new[c]["n"]) for c in heads] == [1, 4, 7]
    assert all(new[c]["w"].untyped_storage().nbytes() == 24 for c in heads)


def test_partial_participation_after_the_period(monkeypatch):
    """G mixes those who are there; whoever never chose keeps its own head."""
    engine, states, _ = period(monkeypatch, [1.0, 0.1], 0.5)
    sent = uplinks(engine, [0, 2, 4], seed=9)
    after = advanced(HEADS, sent, engine=engine, state=states[-1])
    assert after.numbers == {"heads.open": 0.0, "heads.rounds": 2.0}
    boxes = after.state.mailboxes["heads.head"]
    np.testing.assert_allclose(array(boxes[0]["classifier.weight"]), head_of(sent, 0), rtol=1e-5)  # peer 1 is away
    assert torch.equal(boxes[4]["classifier.weight"], sent[4]["heads.head"]["classifier.weight"])
    assert boxes[1] is states[-1].mailboxes["heads.head"][1]


def test_fewer_than_three_uploads_keep_their_own():
    engine = trial_after(HEADS, rounds=0)
    for cohort in ([2], [1, 3]):
        sent = uplinks(engine, cohort)
        new = served(HEADS, sent, engine=engine)
        assert digest(new.slots) == digest(engine.progress.state.slots)
        for c in cohort:
            assert torch.equal(
                new.mailboxes["heads.head"][c]["classifier.weight"], sent[c]["heads.head"]["classifier.weight"]
            )


def test_what_a_run_records(tmp_path):
    """Map, gaps, peers and the length of the period are in metrics.jsonl, while the period lasts."""
    import json

    played(tmp_path, "algo=fedrema", "algo.heads.delta=1", "rounds=3")
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    server = [record["numbers"] for record in records]
    assert [r["heads.open"] for r in server] == [1, 0, 0]
    assert [r["heads.rounds"] for r in server] == [1, 1, 1]
    first = server[0]
    assert (len(first["heads.gaps"]), len(first["heads.peers"])) == (3, 3)
    assert [len(row) for row in first["heads.map"]] == [6, 6, 6]
    assert [sum(row) - 1 for row in first["heads.map"]] == first["heads.peers"]
    assert "heads.map" not in server[1]


# ---------------------------------------------------------------- mailboxes, through the worker
def test_who_gets_which_head():
    """A client starts from its own box; one that was not there keeps it; a new one has the initial head."""
    recorder = Recorder()
    with opened({**HEADS, "r": recorder}, rounds=4) as engine:
        initial = engine.algorithm.facts.initial["classifier.weight"]
        boxes = {}
        for _ in range(4):
            recorder.rounds.clear()
            jobs = {j.client: j for j in jobs_of(engine, range(CLIENTS))}
            for c, job in jobs.items():
                expected = boxes.get(c, initial)
                assert torch.equal(job.downlink["heads.head"]["classifier.weight"], expected)
            state = round_of(engine)
            for local in recorder.rounds:
                assert torch.equal(local.received["classifier.weight"], boxes.get(local.client, initial))
            boxes |= {r.client: state.mailboxes["heads.head"][r.client]["classifier.weight"] for r in recorder.rounds}
    assert len({digest({"": {"w": b}}) for b in boxes.values()}) > 1
    assert not engine.algorithm.global_view
    assert "aggregation" not in engine.records[-1]


def test_the_trained_head_is_sent_and_not_with_the_model():
    recorder = Recorder()
    with opened({**HEADS, "r": recorder}) as engine:
        uplink = work(engine, 1).uplink
    (local,) = recorder.rounds
    sent = uplink["heads.head"]["classifier.weight"]
    assert torch.equal(sent, local.ends["local"]["classifier.weight"])
    assert not torch.equal(sent, local.received["classifier.weight"])
    assert "classifier.weight" not in uplink["model"]


def test_the_personal_model_is_shared_features_and_own_head(tmp_path):
    engine = played(tmp_path, "algo=fedrema", "evaluate=fedrema", "rounds=2")
    worker, state = engine.executor._worker, engine.progress.state
    net = worker.net
    scores = []
    for client in engine.sampler(1):
        own = worker.data.own_test(client)
        tree = {**state.model, **state.mailboxes["heads.head"][client]}
        with torch.no_grad():
            z = torch.func.functional_call(net, tree, (own.x,))
        scores.append((z.argmax(1) == own.y).float().mean().item())
    assert engine.records[-1]["personalization"]["clients"] == pytest.approx(scores)


def test_every_layer_of_a_deep_head_is_mixed():
    experiment = tiny(
        "algo=fedrema", "model=cnn", "~model.hidden", "model.widths=[2,2]", "+model.hidden=5", "data.size=28"
    )
    names = experiment.algorithm.facts.layout.part("classifier")
    assert len(names) == 4
    facts = experiment.algorithm.facts
    assert {n.split(".")[0] for n in facts.layout.shared} == {"features"}
    rng = torch.Generator().manual_seed(0)
    heads = {c: {n: torch.randn(facts.initial[n].shape, generator=rng) for n in names} for c in range(3)}
    new = mixed(heads, torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]]))
    for n in names:
        np.testing.assert_allclose(
            array(new[0][n]), (array(heads[0][n]) + array(heads[1][n])) / 2, rtol=1e-5, atol=1e-6
        )


# ---------------------------------------------------------------- alternation and alignment
def test_alternation_freezes_one_part_at_a_time():
    """Bit-identical under momentum and weight decay, running statistics included."""
    recorder = Recorder()
    sgd = Sgd(lr=0.1, momentum=0.9, weight_decay=0.1)
    with opened({**HEADS, "alternate": Alternate(), "r": recorder}, norm=True, optimizer=sgd, fraction=1.0) as engine:
        round_of(engine)
        round_of(engine)
    layout = engine.algorithm.facts.layout
    for local in recorder.rounds:
        first, second = local.ends["head"], local.ends["local"]
        assert all(torch.equal(first[n], local.received[n]) for n in layout.part("features"))
        assert all(torch.equal(second[n], first[n]) for n in layout.part("classifier"))
        assert not all(torch.equal(first[n], local.received[n]) for n in layout.part("classifier"))
        assert not all(torch.equal(second[n], first[n]) for n in layout.trainable("features"))


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, (3, 6)), (None, (6, 6)), (2.0, (6, 6))])
def test_epochs_of_the_two_parts(epochs, steps):
    recorder = Recorder()
    with opened({"alternate": Alternate(epochs=epochs), "r": recorder}, epochs=2) as engine:
        work(engine, 1)  # three batches an epoch
    assert (recorder.rounds[0].steps["head"], recorder.rounds[0].steps["local"]) == steps


def test_the_features_may_have_epochs_of_their_own():
    recorder = Recorder()
    with opened({"alternate": Alternate(epochs=4.0, body_epochs=1.0), "r": recorder}, epochs=2) as engine:
        work(engine, 1)
    assert recorder.rounds[0].steps == {"head": 12, "local": 3}


def test_learning_rate_of_the_head():
    recorder = Recorder()
    with opened({"alternate": Alternate(lr=0.5), "r": recorder}) as engine:
        work(engine, 1)
    assert recorder.rounds[0].lr == {"head": 0.5, "local": 0.1}
    with pytest.raises(PlanError, match=r"algo\.alternate\.epochs must be greater than 0"):
        trial_after({"alternate": Alternate(epochs=0.0)}, rounds=0)


def test_alignment_acts_on_the_features_phase_only():
    parts = {**HEADS, "alternate": Alternate(), "means": ClassMeans(by="clients"), "align": Align()}
    engine = play(parts, rounds=2)
    terms = engine.records[-1]["terms"]
    assert "local/align" in terms
    assert "head/align" not in terms


def test_from_their_files():
    expected = {"fedrema": 1, "fedrema_f": 3, "fedrema_a": 2, "fedrema_af": 4}
    for name, parts in expected.items():
        algorithm = tiny(f"algo={name}", "algo.heads.delta=0.3").algorithm
        assert len(algorithm.components) == parts
        assert algorithm.components["heads"].delta == 0.3
        assert [p.name for p in algorithm.phases] == (["head", "local"] if "_a" in name else ["local"])


# ---------------------------------------------------------------- with others
@pytest.mark.parametrize("extra", [{}, {"alternate": Alternate()}], ids=["plain", "alternating"])
def test_control_variates_correct_the_shared_part(extra):
    with opened({**HEADS, **extra, "scaffold": Scaffold()}, rounds=3) as engine:
        for _ in range(3):
            c = round_of(engine).slots["scaffold.c"]
            controls = [engine.progress.store.get(k).get("scaffold.ck") for k in range(CLIENTS)]
            for name, value in c.items():
                assert name.startswith("features")
                mean = sum(array(k[name]) for k in controls if k is not None) / CLIENTS
                np.testing.assert_allclose(array(value), mean, rtol=1e-4, atol=1e-5)


def test_wrong_settings_are_refused():
    for heads, message in (
        (RelativityHeads(delta=1.5), "delta must be between 0 and 1"),
        (RelativityHeads(temperature=0.0), "temperature must be greater than 0"),
        (RelativityHeads(draws=0), "draws must be between 1 and"),
        (RelativityHeads(during=("*",)), "during must name the one phase"),
    ):
        with pytest.raises(PlanError, match=message):
            trial_after({"heads": heads}, rounds=0)
