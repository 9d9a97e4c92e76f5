"""Modules beside the network: trained with it, kept by clients or sent, and part of the released model if sent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.algos.alternate import Alternate
from fedexp.algos.ditto import Ditto
from fedexp.api import run
from fedexp.build import build
from fedexp.client.faults import RAISE
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.messages import Local
from fedexp.client.network import add_modules, layout_of, load, tensors
from fedexp.client.worker import Worker
from fedexp.config.compose import composed
from fedexp.core.component import Component, Phase
from fedexp.core.seeding import seeded
from fedexp.core.state import Slot, number, snapshot
from fedexp.display import SilentDisplay
from fedexp.errors import ClientError, PlanError
from fedexp.runs.directory import RunDir
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.conftest import SMALL
from tests.helpers import batches_of, jobs_of, opened, work, worker_of
from tests.miniatures import Projection, SecondHead

HEAD = ("beside.rod/head.weight", "beside.rod/head.bias")
LOOPS = [FabricLoop, TrainerLoop]


def first_head() -> nn.Linear:
    with seeded(0, "modules", "rod"):
        return nn.Linear(8, CLASSES)


# ---------------------------------------------------------------- the formula written again
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("norm", [False, True])
def test_a_second_head_is_trained_with_the_network_and_kept(loop, norm):
    head = first_head()
    with opened({"rod": SecondHead()}, loop=loop, norm=norm, fraction=1.0) as engine:
        for _ in range(2):
            (job,) = jobs_of(engine, [1])
            net = tiny_net(norm=norm)
            load(net, engine.progress.state.model)
            optimizer = torch.optim.SGD(
                [*net.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-3
            )
            for x, y in batches_of(engine, job, "local"):
                h = net.features(x)
                z = net.classifier(h)
                optimizer.zero_grad()
                (F.cross_entropy(z, y) + F.cross_entropy(z.detach() + head(h.detach()), y)).backward()
                optimizer.step()
            result = work(engine, 1)
            for name, value in tensors(net).items():
                torch.testing.assert_close(result.uplink["model"][name], value)
            assert set(result.uplink["model"]) == set(tensors(net))
            for name, value in zip(HEAD, head.parameters(), strict=True):
                torch.testing.assert_close(result.private["rod.head"][name], value.detach())
            net.eval()
            own = worker_of(engine).data.own_test(1)
            h = net.features(own.x)
            loss = F.cross_entropy(net.classifier(h) + head(h), own.y, reduction="sum").item()
            assert result.after.loss == pytest.approx(loss, rel=1e-4)
            engine.play(engine.progress.state.round + 1)  # the second time with the head it has kept


def test_clients_begin_with_the_same_module_from_the_seed():
    with opened({"rod": SecondHead()}) as engine:
        slot = engine.algorithm.slots["rod.head"]
        assert slot.scope == "client"
        value = slot.init(engine.algorithm.init("rod.head"))
    assert [torch.equal(value[n], p) for n, p in zip(HEAD, first_head().parameters(), strict=True)] == [True, True]


def test_the_server_never_sees_a_private_module():
    engine = play({"rod": SecondHead()})
    plain = play({})
    assert set(engine.progress.state.model) == set(plain.progress.state.model)
    assert engine.ledger.up == plain.ledger.up
    assert engine.ledger.down == plain.ledger.down
    cohort = engine.sampler(engine.rounds - 1)
    assert all(set(engine.progress.store.get(c)) == {"rod.head"} for c in cohort)


def test_the_servers_model_is_tested_with_the_first_module_whoever_was_trained_before():
    @dataclass(frozen=True, kw_only=True)
    class Answers(SecondHead):
        def logits(self, z, step):
            return z + step.module("head")(step.h)

    with opened({"rod": Answers(during=("local", "eval"))}) as engine:
        message = engine.progress.state.message
        before = list(worker_of(engine).test_server(message, (0, 40)))
        work(engine, 1)
        assert list(worker_of(engine).test_server(message, (0, 40))) == before


def test_clipping_counts_modules_in():
    def moved(clip):
        components = {"rod": SecondHead()}
        net = add_modules(tiny_net(), components, 0, CLASSES)
        with opened(components) as engine:
            worker = worker_of(engine)
            clipped = Worker(
                net, worker.data, engine.algorithm, FabricLoop(), worker.fitter.optimizer, Local(0.3, 4, clip), RAISE
            )
            (job,) = jobs_of(engine, [2])
            result = clipped.work(job)
            start = engine.algorithm.facts.initial
            ends = {**result.uplink["model"], **result.private["rod.head"]}
        return torch.stack([(v - start[n]).square().sum() for n, v in ends.items()]).sum().sqrt().item()

    assert moved(1e-2) == pytest.approx(0.1 * 1e-2, rel=0.05)  # one step of lr 0.1, and a little weight decay
    assert moved(None) > 1e-2


# ---------------------------------------------------------------- phases
@dataclass(frozen=True, kw_only=True)
class HeadAlone(SecondHead):
    """Trains the network first, then nothing but the head."""

    during: tuple[str, ...] = ("head", "eval")

    def plan(self, phases):
        return [*phases, Phase("head", start="previous", train="rod.head")]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_phase_may_train_a_module_alone(loop):
    ends: list[dict] = []

    @dataclass(frozen=True, kw_only=True)
    class Looks(Component):
        def finish(self, local):
            ends.append({n: snapshot(t) for n, t in local.ends.items()})
            return super().finish(local)

    with opened({"rod": HeadAlone(), "looks": Looks()}, loop=loop, norm=True) as engine:
        result = work(engine, 1)
        initial = engine.algorithm.facts.initial
    (end,) = ends
    changed = {n for n, v in end["head"].items() if not torch.equal(v, end["local"][n])}
    assert changed == set(HEAD)
    assert all(torch.equal(end["local"][n], initial[n]) for n in HEAD)  # no loss reached it there
    assert all(torch.equal(result.private["rod.head"][n], end["head"][n]) for n in HEAD)


@dataclass(frozen=True, kw_only=True)
class Waits(Projection):
    """Trains the projection, which has batch norm, in the second of two phases only."""

    modes: list = field(default_factory=list, compare=False)
    during: tuple[str, ...] = ("*",)

    def plan(self, phases):
        (phase,) = phases
        return [Phase("first", train="features+classifier"), replace(phase, start="previous")]

    def loss(self, step):
        self.modes.append((step.phase, step.module("projection").training))
        return super().loss(step)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_frozen_module_is_in_evaluation_mode_and_then_trains(loop):
    waits = Waits()
    with opened({"moon": waits}, loop=loop) as engine:
        result = work(engine, 1)
        work(engine, 1)
    assert set(waits.modes) == {("first", False), ("local", True)}
    assert result.uplink["model"]["beside.moon/projection.1.num_batches_tracked"] == 6  # those of the second phase


@dataclass(frozen=True, kw_only=True)
class TrainsFeatures(Component):
    part: str = "features"

    def plan(self, phases):
        return [replace(p, train=self.part) for p in phases]


def test_a_module_that_no_phase_trains_is_refused():
    with pytest.raises(PlanError) as error:
        play({"rod": SecondHead(), "t": TrainsFeatures()})
    assert str(error.value) == (
        "no phase trains the module 'rod.head'. Train 'all', or add '+rod.head' to the train of a phase."
    )
    play({"rod": SecondHead(), "t": TrainsFeatures(part="features+rod.head")}, rounds=1)
    play({"rod": SecondHead(), "t": TrainsFeatures(part="body")}, rounds=1)


def test_modules_compose_with_two_phases_and_with_a_second_model():
    for other in (Alternate(), Ditto()):
        engine = play({"rod": SecondHead(), "other": other})
        cohort = engine.sampler(engine.rounds - 1)
        initial = engine.algorithm.facts.initial
        for client in cohort:
            kept = engine.progress.store.get(client)["rod.head"]
            assert not any(torch.equal(kept[n], initial[n]) for n in HEAD)


# ---------------------------------------------------------------- modules that travel
def test_a_shared_module_is_sent_averaged_and_sent_back():
    engine = play({"moon": Projection()}, rounds=1, fraction=1.0)
    names = {n for n in engine.progress.state.model if n.startswith("beside.moon/projection.")}
    assert len(names) == 9  # two linear layers, and a batch norm with its statistics
    assert "moon.projection" not in engine.algorithm.slots
    with opened({"moon": Projection()}, fraction=1.0) as fresh:
        results = {c: work(fresh, c) for c in range(5)}
        counts = fresh.algorithm.facts.counts.sum(1)
    for name in (n for n in names if not n.endswith("tracked")):
        mean = sum(counts[c] / counts.sum() * r.uplink["model"][name] for c, r in results.items())
        torch.testing.assert_close(engine.progress.state.model[name], mean)
    message = engine.algorithm.downlink(engine.progress.state, 0)
    assert all(torch.equal(message["model"][n], engine.progress.state.model[n]) for n in names)


def test_the_module_of_other_weights_is_that_of_those_weights():
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    @dataclass(frozen=True, kw_only=True)
    class Looks(Projection):
        def loss(self, step):
            features, _ = step.forward(step.received)
            seen.append((step.module("projection", step.received)(features), step.x, snapshot(step.received)))
            assert not step.module("projection", step.received).training
            assert step.module("projection").training
            return super().loss(step)

    with opened({"moon": Looks()}) as engine:
        work(engine, 1)
    net = add_modules(tiny_net(), {"moon": Projection()}, 0, CLASSES).eval()
    for given, x, received in seen:
        load(net, received)
        torch.testing.assert_close(given, net.module_beside("moon", "projection")(net.features(x)).detach())


@dataclass(frozen=True, kw_only=True)
class ProjectedHead(Projection):
    """Classifies by the projection: its teacher's logits need the teacher's projection."""

    seen: list = field(default_factory=list, compare=False)
    during: tuple[str, ...] = ("*",)

    def modules(self, net, n_classes):
        return {"projection": nn.Linear(net.feature_dim, n_classes)}

    def private_part(self):
        return "classifier"

    def plan(self, phases):
        return [replace(p, train="body") for p in phases]

    def head(self, h, step):
        return step.module("projection")(h)

    def loss(self, step):
        h, z = step.forward(step.received)
        weight, bias = (step.received[f"beside.moon/projection.{n}"] for n in ("weight", "bias"))
        self.seen.append(((h @ weight.T + bias - z).abs().max().item(), (z - step.z).abs().max().item()))


def test_a_head_made_of_a_module_answers_for_teachers_and_for_the_server():
    head = ProjectedHead()
    engine = play({"moon": head})
    assert max(difference for difference, _ in head.seen) < 1e-5
    assert max(moved for _, moved in head.seen) > 0.01
    assert engine.records[-1]["aggregation"]["accuracy"] > 0.5


# ---------------------------------------------------------------- what is released, and what is refused
def test_the_saved_model_has_no_modules_of_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDEXP_ALLOW", "tests")
    conf = tmp_path / "conf" / "algo"
    conf.mkdir(parents=True)
    (conf / "mini.yaml").write_text(
        "moon:\n  _target_: tests.miniatures.Projection\n  weight: 0.5\n  during: [local]\n"
        "rod:\n  _target_: tests.miniatures.SecondHead\n  during: [local, eval]\n"
    )
    small = [o for o in SMALL if not o.startswith("algo=")]
    more = ["algo=mini", "evaluate=fedgela", "rounds=2", f"out={tmp_path / 'runs'}"]
    run([*small, *more], config_dir=tmp_path / "conf")
    (path,) = (tmp_path / "runs").rglob("model.safetensors")
    names = set(safetensors.torch.load_file(path))
    assert names
    assert not [n for n in names if not n.startswith(("features.", "classifier.", "beside.moon/projection."))]


def test_a_saved_model_with_a_shared_module_can_be_tested_again(tmp_path):
    """FedGELA's frame comes from the seed, its trained projection from the file."""
    small = [o for o in SMALL if not o.startswith("algo=")]
    overrides = [*small, "algo=fedgela", "evaluate=fedgela", "rounds=3", f"out={tmp_path}"]
    result = run(overrides)
    saved = safetensors.torch.load_file(result.path / "model.safetensors")
    experiment = build(composed(overrides))
    with RunDir(tmp_path / "again") as rundir:
        worker = worker_of(experiment.engine(rundir, SilentDisplay()))
    scores = list(worker.test_server({"model": saved}, (0, len(experiment.data.test.y))))
    assert sum(sum(s.correct) for s in scores) / sum(s.n for s in scores) == result.aggregation["last"]
    assert {n for n in saved if n.startswith("beside.")} == {f"beside.etf/projection.{n}" for n in ("weight", "bias")}


def test_the_layout_knows_modules_as_parts():
    net = add_modules(tiny_net(), {"rod": SecondHead(), "moon": Projection()}, 0, CLASSES)
    layout = layout_of(net)
    assert layout.modules == ("rod.head", "moon.projection")
    assert set(layout.part("rod.head")) == set(HEAD)
    assert not layout.beside & (layout.parts["features"] | layout.parts["classifier"])
    assert layout.parts["all"] == layout.beside | layout.parts["features"] | layout.parts["classifier"]
    assert layout.parts["body"] == layout.parts["all"] - layout.parts["classifier"]
    assert layout_of(tiny_net()).beside == frozenset()


@dataclass(frozen=True, kw_only=True)
class Gives(Component):
    what: str = "list"
    during: tuple[str, ...] = ("local",)

    @property
    def shared_modules(self):
        return ("haed",) if self.what == "shared" else ()

    def slots(self):
        return (Slot("head", "client", number(0.0)),) if self.what == "slot" else ()

    def modules(self, net, n_classes):
        named = {"list": {"head": [1]}, "name": {"my head": nn.Linear(1, 1)}}
        return named.get(self.what, {"head": nn.Linear(8, 4)})

    def loss(self, step):
        return step.module("haed").weight.sum()


@pytest.mark.parametrize(
    ("what", "words"),
    [("list", "modules of component 'c' must be torch modules named by words, not 'head': [1]"),
     ("name", "must be torch modules named by words, not 'my head'"),
     ("shared", "shared_modules of component 'c' has 'haed', which modules does not. Did you mean 'head'?"),
     ("slot", "component 'c' has a slot and a module 'c.head': a private module is a slot of its name")],
)  # fmt: skip
def test_modules_that_cannot_be(what, words):
    with pytest.raises(PlanError) as error:
        trial_after({"c": Gives(what=what)}, rounds=0)
    assert words in str(error.value)


def test_modules_of_a_component_that_trains_in_no_phase():
    with pytest.raises(PlanError, match=r"algo\.c\.during must name a phase of training"):
        trial_after({"c": Gives(what="", during=("eval",))}, rounds=0)


def test_a_module_that_is_not_there():
    with pytest.raises(ClientError, match=r"component 'c' has no module 'haed'; its modules are \['head'\]"):
        play({"c": Gives(what="")})
