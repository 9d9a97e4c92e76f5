"""FedPHP and MAP: the inherited private model, its schedule, and the halves of MAP's local training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedexp.algos.fedlc import LogitCalibration
from fedexp.algos.fedrod import TwoHeads
from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.inherited import InheritedPrivateModel
from fedexp.algos.scaffold import Scaffold
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.testing import CLIENTS, play
from tests.helpers import Recorder, array, jobs_of, opened, played, round_of, work, worker_of

RS = RestrictedSoftmax(alpha=0.9)
PHP = InheritedPrivateModel(during=("local",))
MAP = InheritedPrivateModel(during=("personal",))


def same(one, two):
    return digest({"": dict(one)}) == digest({"": dict(two)})


# ---------------------------------------------------------------- the private model
@pytest.mark.parametrize("hpm", [PHP, MAP], ids=["fedphp", "map"])
def test_first_selection_inherits_everything_and_is_not_taught(hpm):
    """q = w_k to the bit, and any weight gives the same training as none."""
    ends = []
    for weight in (0.0, 0.7):
        recorder = Recorder()
        with opened({"rs": RS, "hpm": replace(hpm, weight=weight), "r": recorder}, norm=True) as engine:
            result = work(engine, 1)
        assert same(result.private["hpm.model"], recorder.rounds[0].last)
        assert float(result.private["hpm.seen"]["value"]) == 1
        ends.append(result.private["hpm.model"])
        assert f"{hpm.during[0]}/hpm" not in result.terms
    assert same(*ends)


def test_schedule_and_cap():
    """mu_k = 0.9 z / max(int(Q T), 1), never above 0.9, or 1 with MAP's clip."""
    given = [MAP._inertia(seen, 30) for seen in (0, 1, 15, 30, 31, 400)]
    assert given == pytest.approx([0, 0.03, 0.45, 0.9, 0.9, 0.9])
    maps = [replace(MAP, clip=1.0)._inertia(seen, 30) for seen in (0, 1, 15, 30, 31, 33, 34, 400)]
    assert maps == pytest.approx([0, 0.03, 0.45, 0.9, 0.93, 0.99, 1, 1])
    with opened({}, rounds=150, fraction=0.2) as engine:
        assert engine.algorithm.facts.expected_selections == 30


@pytest.mark.parametrize("hpm", [PHP, MAP], ids=["fedphp", "map"])
def test_private_model_over_rounds(hpm):
    """q ← (1 - mu) w_k + mu q, buffers too; counters are w_k's; who is not selected keeps q to the bit."""
    recorder = Recorder()
    with opened({"hpm": hpm, "r": recorder}, norm=True, rounds=5) as engine:
        expected = engine.algorithm.facts.expected_selections
        assert expected == 3
        seen, kept = {}, {}
        for _ in range(5):
            before = {c: engine.progress.store.get(c).get("hpm.model") for c in range(5)}
            recorder.rounds.clear()
            round_of(engine)
            trained = {r.client: r.ends[hpm.during[0]] for r in recorder.rounds}
            for client in range(5):
                now = engine.progress.store.get(client).get("hpm.model")
                if client not in trained:
                    assert now is before[client]
                    continue
                mu = min(0.9 * seen.get(client, 0) / expected, 0.9)
                for name, w in trained[client].items():
                    if not w.is_floating_point() or mu == 0:
                        assert torch.equal(now[name], w)
                        continue
                    written = (1 - mu) * array(w) + mu * kept[client][name]
                    np.testing.assert_allclose(array(now[name]), written, rtol=1e-5, atol=1e-6)
                seen[client] = seen.get(client, 0) + 1
                kept[client] = {k: array(v) for k, v in now.items()}
    assert max(seen.values()) > 2


def test_with_maps_clip_a_client_that_is_drawn_often_keeps_its_private_model():
    """Q T is 1 here, so that mu_k is 0.9 at the second selection and would be 1.8 at the third."""
    for clip, stays in ((0.9, False), (1.0, True)):
        with opened({"hpm": replace(PHP, clip=clip)}, fraction=0.6, rounds=1) as engine:
            assert engine.algorithm.facts.expected_selections == 1
            models = []
            for _ in range(3):
                private = work(engine, 1).private
                engine.progress.store.put(1, private)
                models.append(private["hpm.model"])
        assert not same(models[0], models[1])
        assert same(models[1], models[2]) is stays


@pytest.mark.parametrize("transfer", ["kd", "mmd", "kd_one_sided"])
def test_second_selection_is_taught(transfer):
    """The uploaded loss is (1 - weight) CE + weight L: the logged term is weight (L - CE), and training differs."""
    ends = []
    for weight in (0.0, 0.5):
        hpm = replace(PHP, transfer=transfer, weight=weight)
        with opened({"hpm": hpm}, fraction=1.0) as engine:
            round_of(engine)
            ends.append(work(engine, 1))
    assert "local/hpm" in ends[1].terms
    assert not same(ends[0].uplink["model"], ends[1].uplink["model"])


def test_the_term_is_a_correction_of_the_cross_entropy():
    """On the first batch of the second selection, with the numbers written out."""
    seen = []

    class Looking(Recorder):
        def _look(self, step):
            if step.index == 0 and not seen:
                q = {k: v.clone() for k, v in step.of("hpm")["model"].items()}
                seen.append((step.ce.item(), array(step.z), array(step.forward(q)[1])))

    looking = type("Looking", (Looking,), {"needs": ("hpm",)})(during=("local",))
    one_step = {"epochs": 0.01, "fraction": 1.0, "optimizer": Sgd(lr=0.5)}
    with opened({"hpm": replace(PHP, weight=0.3), "r": looking}, **one_step) as engine:
        engine.progress.store.put(0, work(engine, 0).private)
        seen.clear()
        result = work(engine, 0)
    ce, z, g = seen[0]
    p, q = (np.exp(v / 4) / np.exp(v / 4).sum(1, keepdims=True) for v in (z, g))
    kd = 16 * (q * np.log(q / p)).sum(1).mean()
    assert result.terms["local/hpm"] == pytest.approx(0.3 * (kd - ce), rel=1e-4)


@pytest.mark.parametrize(
    "other", [RestrictedSoftmax(alpha=0.5), LogitCalibration(), TwoHeads()], ids=lambda c: type(c).__name__
)
@pytest.mark.parametrize("transfer", ["kd", "mmd"])
def test_a_private_model_that_agrees_teaches_nothing(other, transfer):
    """Eq. 11 compares both networks' logits, which a restricted softmax is no part of: with weight 1 nothing moves."""
    parts = {"other": other, "hpm": replace(PHP, weight=1.0, transfer=transfer)}
    with opened(parts, fraction=1.0, epochs=0.01, optimizer=Sgd(lr=1.0)) as engine:
        initial = engine.algorithm.facts.initial
        for client in range(CLIENTS):
            (job,) = jobs_of(engine, [client])
            private = {**job.private, "hpm.model": initial, "hpm.seen": {"value": torch.tensor(1.0)}}
            result = worker_of(engine).work(replace(job, private=private))
            assert result.terms["local/ce"] + result.terms["local/hpm"] == pytest.approx(0, abs=1e-6)
            for name, w in result.uplink["model"].items():
                np.testing.assert_allclose(array(w), array(initial[name]), atol=1e-5)


def test_view_is_the_private_model_once_there_is_one():
    with opened({"hpm": MAP}) as engine:
        algorithm = engine.algorithm
        views = algorithm.views({"hpm.model": {"w": torch.ones(1)}, "hpm.seen": {"value": torch.tensor(0.0)}})
        later = algorithm.views({"hpm.model": {"w": torch.ones(1)}, "hpm.seen": {"value": torch.tensor(1.0)}})
        from fedexp.core.views import View

        plain = {"w": torch.zeros(1)}
        assert algorithm.compose(plain, View(views, None, algorithm.facts), "view")["w"] is plain["w"]
        assert algorithm.compose(plain, View(later, None, algorithm.facts), "view")["w"] == 1


# ---------------------------------------------------------------- MAP's halves
@pytest.mark.parametrize("epochs", [2.0, 2.5, 1.0])
@pytest.mark.parametrize("client", range(5))
def test_map_without_its_ideas_is_fedavg_in_two_halves(client, epochs):
    """alpha = 1, weight = 0: the upload is FedAvg's after floor(tau/2) steps, w_k is FedAvg's after tau, to the bit."""
    neutral = {"rs": replace(RS, alpha=1.0), "hpm": replace(MAP, weight=0.0)}
    with opened(neutral, epochs=epochs, norm=True) as engine:
        ours = work(engine, client)
        per_epoch = engine.executor._worker.data.steps_per_epoch(client, 4)
    tau = max(int(epochs * per_epoch), 1)
    half = max(tau // 2, 1)
    with opened({}, epochs=(half + 0.5) / per_epoch, norm=True) as engine:
        assert same(ours.uplink["model"], work(engine, client).uplink["model"])
    if tau > 1:
        with opened({}, epochs=epochs, norm=True) as engine:
            assert same(ours.private["hpm.model"], work(engine, client).uplink["model"])


def test_map_server_is_fedavg_with_half_the_steps():
    """Over several rounds, with transfer at work in the private half."""
    neutral = {"rs": replace(RS, alpha=1.0), "hpm": replace(MAP, weight=0.0)}
    fedavg = play({}, epochs=1, rounds=4).progress.state.model
    assert same(play(neutral, epochs=2, rounds=4).progress.state.model, fedavg)
    taught = {"rs": replace(RS, alpha=1.0), "hpm": replace(MAP, weight=0.5)}
    assert same(play(taught, epochs=2, rounds=4).progress.state.model, fedavg)


def test_fresh_optimizer_forgets_the_momentum_at_the_switch():
    ends = []
    for fresh in (False, True):
        with opened({"hpm": replace(MAP, fresh_optimizer=fresh)}) as engine:
            ends.append(work(engine, 1))
    assert same(ends[0].uplink["model"], ends[1].uplink["model"])
    assert not same(ends[0].private["hpm.model"], ends[1].private["hpm.model"])


def test_scamap_server_is_scaffold_rs_with_half_the_steps():
    """Control variates and restricted softmax act on the uploaded half alone."""
    scamap = play({"rs": RS, "hpm": replace(MAP, weight=0.5), "scaffold": Scaffold()}, epochs=2, rounds=4)
    scars = play({"rs": RS, "scaffold": Scaffold()}, epochs=1, rounds=4)
    assert same(scamap.progress.state.model, scars.progress.state.model)
    assert same(scamap.progress.state.slots["scaffold.c"], scars.progress.state.slots["scaffold.c"])
    for client in range(5):
        mine, theirs = (e.progress.store.get(client).get("scaffold.ck") for e in (scamap, scars))
        assert (mine is None) == (theirs is None)
        assert mine is None or same(mine, theirs)


def test_map_from_its_file(tmp_path):
    engine = played(tmp_path, "algo=map", "rounds=3")
    assert {p.name for p in engine.algorithm.phases} == {"local", "personal"}
    assert engine.algorithm.uploading.name == "local"
    assert "personal/hpm" in engine.records[-1]["terms"]
