"""What components are shown: a step while training and while testing, and the round after its last phase."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.loops import FabricLoop
from fedexp.client.network import load
from fedexp.core.component import Component
from fedexp.core.seeding import seeded
from fedexp.core.state import Out, pick, snapshot
from fedexp.errors import ClientError
from fedexp.models.split import SplitModel
from fedexp.testing import play, tiny_net
from fedexp.testing.trial import CLASSES, SIDE
from tests.helpers import opened, work, worker_of


@dataclass(frozen=True, kw_only=True)
class Notes(Component):
    """Writes down what ``_look`` makes of a step, and what ``_after`` makes of a round."""

    seen: list = field(default_factory=list, compare=False)
    during: tuple[str, ...] = ("*",)

    def logits(self, z, step):
        self._note(step)
        return z

    def finish(self, local):
        self._after(local)
        return Out()

    def _note(self, step):
        pass

    def _after(self, local):
        pass


# ---------------------------------------------------------------- steps
class Rounds(Notes):
    def _note(self, step):
        self.seen.append((step.phase, step.round))


def test_a_step_knows_its_round_also_while_a_client_is_tested():
    rounds = Rounds()
    with opened({"r": rounds}) as engine:
        engine.progress.state.round = 2
        work(engine, 1)
    assert set(rounds.seen) == {("local", 2), ("eval", 2)}


def test_the_servers_model_is_tested_outside_of_rounds():
    with pytest.raises(RuntimeError, match="test of the server's model, which belongs to no round"):
        play({"r": Rounds()})


class Samples(Notes):
    def _note(self, step):
        if step.phase == "eval":
            self.seen.append(step.x)


def test_a_test_shows_the_samples_themselves():
    samples = Samples()
    with opened({"s": samples}) as engine:
        work(engine, 1)
        own = worker_of(engine).data.own_test(1)
    assert all(torch.equal(x, own.x) for x in samples.seen)
    assert len(samples.seen) >= 2  # before and after


@dataclass(frozen=True, kw_only=True)
class Everywhere(Component):
    """Belongs to the network: twice the logits, plus the mean feature of the sample."""

    during: tuple[str, ...] = ("*",)

    def logits(self, z, step):
        return 2 * z + step.h.mean(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class WhileTraining(Component):
    def logits(self, z, step):
        return 100 * z


@dataclass(frozen=True, kw_only=True)
class Classifies(Component):
    """Classifies features of its own, and lets the received weights classify the batch."""

    seen: list = field(default_factory=list, compare=False)

    def loss(self, step):
        h = torch.ones(3, step.h.shape[1])
        z = step.classify(h)
        weight = step.weights["classifier.weight"].detach().clone()
        self.seen.append((h, weight, z.detach(), step.x, step.received, step.forward(step.received)))
        return 0.1 * z.square().mean()


def test_features_of_ones_own_go_through_the_live_classifier_with_gradient():
    mine = Classifies()
    with opened({"mine": mine, "all": Everywhere(), "rs": WhileTraining()}) as engine:
        result = work(engine, 1)
    for h, weight, z, *_ in mine.seen:
        torch.testing.assert_close(z, 2 * h @ weight.T + h.mean(1, keepdim=True))
    assert not torch.equal(mine.seen[0][1], mine.seen[-1][1])
    with opened({"all": Everywhere(), "rs": WhileTraining()}) as engine:
        plain = work(engine, 1)
    assert not torch.equal(plain.uplink["model"]["classifier.weight"], result.uplink["model"]["classifier.weight"])


def test_other_weights_are_run_with_features_of_their_own():
    mine = Classifies()
    with opened({"mine": mine, "all": Everywhere()}) as engine:
        work(engine, 1)
    net = tiny_net().eval()
    for *_, x, received, (features, logits) in mine.seen:
        load(net, received)
        h = net.features(x)
        torch.testing.assert_close(features, h.detach())
        torch.testing.assert_close(logits, (2 * net.classifier(h) + h.mean(1, keepdim=True)).detach())


def flat_net(*, norm: bool):
    """A network whose features are its samples, so that all weights have the same ones."""
    with seeded(0, "flat"):
        size = SIDE * SIDE
        return SplitModel(nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(size, CLASSES)), size)


@pytest.mark.parametrize("loop", [FabricLoop, BatchedLoop])
def test_other_weights_have_other_logits_where_features_are_the_same(loop):
    @dataclass(frozen=True, kw_only=True)
    class Distance(Component):
        def loss(self, step):
            return 0.1 * (step.forward(step.received)[1] - step.z).square().mean()

    group = 5 if loop is BatchedLoop else None
    plain, held = (play(c, net=flat_net, loop=loop, group=group) for c in ({}, {"d": Distance()}))
    name = "classifier.1.weight"
    assert not torch.allclose(plain.progress.state.model[name], held.progress.state.model[name])


# ---------------------------------------------------------------- after the last phase
class Embeds(Notes):
    def _after(self, local):
        trees = {"received": local.received, "end": local.last, "mixed": {**local.last, **self._head(local)}}
        for name, tree in trees.items():
            pairs = list(local.embed(tree))
            h, y = (torch.cat(part) for part in zip(*pairs, strict=True))
            self.seen.append((name, snapshot(tree), h, y, local.classify(tree, h)))
        self.seen.append(("head", snapshot(self._head(local)), h, y, local.classify(self._head(local), h)))

    def _head(self, local):
        return pick(local.received, local.layout.part("classifier"))


@pytest.mark.parametrize("norm", [False, True])
def test_any_weights_embed_and_classify_without_disturbing_what_is_sent(norm):
    notes = Embeds()
    with opened({"n": notes}, norm=norm) as engine:
        result = work(engine, 1)
        own = worker_of(engine).data.own_train(1)
    net = tiny_net(norm=norm).eval()
    for _, tree, h, y, z in notes.seen:
        load(net, tree)
        if "features.1.weight" in tree:
            torch.testing.assert_close(h, net.features(own.x).detach())
        assert torch.equal(y, own.y)
        torch.testing.assert_close(z, net.classifier(h).detach())
    with opened({}, norm=norm) as engine:
        plain = work(engine, 1)
    assert all(torch.equal(v, result.uplink["model"][n]) for n, v in plain.uplink["model"].items())
    assert plain.after == result.after


class EmbedsPart(Notes):
    def _after(self, local):
        list(local.embed(pick(local.last, ["classifier.weight"])))


def test_weights_without_features_cannot_embed():
    with pytest.raises(ClientError, match=r"must have the features, but 'features\.1\.bias' is missing"):
        play({"n": EmbedsPart()})


# ---------------------------------------------------------------- what depends on hyper-parameters
@dataclass(frozen=True, kw_only=True)
class Optional(Component):
    """Personal, and without a global model, if it says so."""

    own: bool = True

    @property
    def personal(self):
        return self.own

    @property
    def global_view(self):
        return not self.own


def test_what_a_method_is_may_depend_on_its_settings():
    for own in (True, False):
        with opened({"o": Optional(own=own)}) as engine:
            assert engine.algorithm.personal is own
            assert engine.algorithm.global_view is not own
