"""The client optimizers against torch's, and what is said of those that do not fit."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedexp.algos.alternate import Alternate
from fedexp.algos.scaffold import Scaffold
from fedexp.build import build
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.optim import Sgd, TorchOptimizer, configured, kept_per_parameter
from fedexp.config.compose import checked, composed
from fedexp.core.component import Component, Phase
from fedexp.core.state import Out, digest
from fedexp.errors import ClientError, ConfigError, PlanError
from fedexp.parts import make_optimizer, parts
from fedexp.system import memory
from fedexp.testing import Shuffled, play
from tests.helpers import TINY, opened, work

ADAM = TorchOptimizer(torch.optim.Adam, {"lr": 0.01, "fused": True})
TRAINS = [c for c in vars(torch.optim).values() if isinstance(c, type) and c is not torch.optim.Optimizer]
REFUSED = {torch.optim.LBFGS: "closure", torch.optim.SparseAdam: "dense gradients", torch.optim.Muon: "2D parameters"}


def walk(make, steps, *, frozen_at=()):
    """Weights after some steps on planted gradients; at some of them the last parameter has none."""
    rng = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((3, 4), (5,), ())]
    optimizer = make(parameters)
    for step in range(steps):
        optimizer.zero_grad()
        assert all(p.grad is None for p in parameters)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=rng)
        if step in frozen_at:
            parameters[-1].grad = None
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}, {"nesterov": True}, {"weight_decay": 0.1}])
def test_fused_is_torchs_bit_for_bit(settings):
    own = Sgd(lr=0.1, **settings)
    given = {"lr": 0.1, "momentum": own.momentum, "weight_decay": own.weight_decay, "nesterov": own.nesterov}
    for steps in (1, 2, 5):
        assert torch.equal(walk(own, steps), walk(lambda p: torch.optim.SGD(p, fused=True, **given), steps))
    torch.testing.assert_close(walk(own, 5), walk(lambda p: torch.optim.SGD(p, **given), 5))


def test_a_parameter_that_joins_late_or_rests_has_its_own_momentum():
    for resting in ((0,), (0, 1, 3), (2,)):
        ours = walk(Sgd(lr=0.1), 5, frozen_at=resting)
        plain = walk(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-5), 5, frozen_at=resting)
        torch.testing.assert_close(ours, plain)


def test_a_phase_may_have_its_own_settings_and_the_unfused_form_is_torchs():
    assert Sgd(lr=0.1).settings(lr=0.5).lr == 0.5
    optimizer = Sgd(fused=False).settings(momentum=0.5)([nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["momentum"] == 0.5


# ---------------------------------------------------------------- any class of torch.optim
@pytest.mark.parametrize("kind", TRAINS, ids=lambda kind: kind.__name__)
def test_every_class_of_torch_trains_or_is_refused_with_its_reason(kind):
    if kind in REFUSED:
        with pytest.raises(
            (ConfigError, PlanError), match=rf"optim: {kind.__name__}\(lr=0.01\) cannot .*{REFUSED[kind]}"
        ):
            play({}, optimizer=configured(kind, {"lr": 0.01}), rounds=1, norm=True)
        return
    engine = play({}, optimizer=configured(kind, {"lr": 0.01}), rounds=1, norm=True)
    assert digest({"": engine.progress.state.model}) != digest({"": dict(engine.algorithm.facts.initial)})


def test_a_clients_round_with_adam_is_torchs():
    with opened({}, rounds=1, optimizer=ADAM) as adam, opened({}, rounds=1, optimizer=Sgd(lr=0.01)) as sgd:
        ours, other = (work(engine, 1).uplink for engine in (adam, sgd))
        again = work(adam, 1).uplink  # no average survives a round
    assert digest(ours) == digest(again) != digest(other)
    torch.testing.assert_close(walk(ADAM, 5), walk(lambda p: torch.optim.Adam(p, lr=0.01), 5))


@pytest.mark.parametrize("other", [{"loop": TrainerLoop}, {"executor": Shuffled}], ids=["the Trainer", "pickled jobs"])
def test_adam_gives_the_same_numbers_however_it_is_run(other):
    one, two = (play({}, optimizer=ADAM, **how) for how in ({"loop": FabricLoop}, other))
    assert one.digests() == two.digests()
    assert pickle.loads(pickle.dumps(ADAM)) == ADAM  # noqa: S301 - as workers get it


def test_a_configuration_names_a_class_of_torch():
    config = composed([*TINY, "optim=adam", "optim._target_=torch.optim.RMSprop", "~optim.betas", "~optim.fused"])
    made = make_optimizer(config["optim"])
    assert made == TorchOptimizer(torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.0})
    adamw = make_optimizer(composed(["optim=adamw"])["optim"])
    group = adamw([nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"], group["fused"]) == (1e-3, (0.9, 0.999), 0.01, True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optim=adam", "optim.lr=-1"], "Invalid learning rate: -1"),
        (["optim=adam", "optim.lr=0"], "lr must be greater than 0"),
        (["optim=adam", "optim.betas=[2,0]"], "Invalid beta parameter at index 0: 2"),
        (["optim=adam", "~optim.lr"], "optim.lr is missing"),
        (["optim=adam", "optim._target_=torch.optim.LBFGS", "~optim.betas", "~optim.eps", "~optim.weight_decay",
          "~optim.fused"], "closure"),
        (["optim=adam", "optim._target_=torch.optim.lr_scheduler"], "neither a class nor a function"),
    ],
)  # fmt: skip
def test_what_an_optimizer_does_not_take_is_said_before_data_are_read(overrides, words):
    with pytest.raises(ConfigError) as caught:
        parts(composed([*TINY, *overrides]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- methods and optimizers
@dataclass(frozen=True, kw_only=True)
class Overrides(Component):
    """A phase with settings of its own."""

    name: str
    value: float

    def plan(self, phases):
        return [Phase("local", optim={self.name: self.value}, uploads=True)]


@dataclass(frozen=True, kw_only=True)
class Normalises(Component):
    """Reads the normaliser without saying so."""

    def finish(self, local):
        local.normaliser("local")
        return Out()


@pytest.mark.parametrize(
    ("optimizer", "name", "value", "words"),
    [
        (Sgd(), "momentun", 0.5, "momentun"),
        (Sgd(), "momentum", 1.5, r"momentum must be in \[0, 1\), not 1.5"),
        (ADAM, "momentum", 0.5, "momentum"),
        (ADAM, "lr", -1.0, "Invalid learning rate"),
    ],
)
def test_a_phase_that_sets_what_the_optimizer_does_not_take_is_refused(optimizer, name, value, words):
    with pytest.raises(PlanError, match=rf"phase 'local' has optim=.*{name}.*, which .* refuses: .*{words}"):
        play({"mine": Overrides(name=name, value=value)}, optimizer=optimizer)


def test_a_phase_may_set_what_the_optimizer_takes():
    play({"alternate": Alternate(lr=0.5)}, optimizer=ADAM, rounds=1)
    play({"mine": Overrides(name="eps", value=1e-4)}, optimizer=ADAM, rounds=1)


@pytest.mark.parametrize("momentum", [False, True])
def test_control_variates_need_sgd(momentum):
    scaffold = {"scaffold": Scaffold(momentum=momentum)}
    with pytest.raises(PlanError, match=r"component 'scaffold' .* not Adam\(lr=0.01, fused=True\)\. Use optim=sgd"):
        play(scaffold, optimizer=ADAM)
    torchs = TorchOptimizer(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True})
    same = [play(scaffold, optimizer=o) for o in (torchs, Sgd(lr=0.1, momentum=0.9, weight_decay=0.0))]
    assert same[0].digests() == same[1].digests()


def test_a_closed_form_of_plain_momentum_is_not_used_for_nesterovs():
    for optimizer in (
        Sgd(nesterov=True),
        TorchOptimizer(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ):
        with pytest.raises(PlanError, match=r"component 'scaffold' computes the mean gradient .* Nesterov"):
            play({"scaffold": Scaffold(momentum=True)}, optimizer=optimizer)
    play({"scaffold": Scaffold()}, optimizer=Sgd(nesterov=True), rounds=1)  # which sets the momentum to 0


def test_a_component_that_forgets_to_say_so_is_stopped_by_the_normaliser():
    with pytest.raises(ClientError, match=r"component 'mine' needs SGD in phase 'local': .*needs_sgd = True"):
        play({"mine": Normalises()}, optimizer=ADAM)
    play({"mine": Normalises()}, rounds=1)


def test_a_plan_is_refused_before_anything_is_trained():
    with pytest.raises(ConfigError, match="Use optim=sgd"):
        build(composed([*TINY, "algo=scaffold", "optim=adam"]))


def test_a_class_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own_optimizers.py").write_text(
        "from torch.optim import SGD\n\n\nclass Halved(SGD):\n"
        "    def __init__(self, params, lr: float, share: float = 0.5):\n"
        "        super().__init__(params, lr=lr * share)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    node = {"_target_": "own_optimizers.Halved", "lr": 0.2, "share": 0.25}
    config = {**composed(TINY), "optim": node}
    made = make_optimizer(checked(config)["optim"])
    assert (made.lr, made.sgd_momentum) == (0.2, None)  # torch's SGD, but not its rule
    ours, plain = (play({}, optimizer=o, rounds=1).digests() for o in (made, Sgd(lr=0.05, momentum=0, weight_decay=0)))
    assert ours == plain
    with pytest.raises(ConfigError, match=r"optim\.share must be a number, not 'half'"):
        checked({**config, "optim": {**node, "share": "half"}})


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A factory that does not say whether it is SGD."""

    lr: float = 0.1

    def settings(self, **overrides):
        return self

    def __call__(self, parameters):
        return torch.optim.SGD(parameters, lr=self.lr)


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [
        (Sgd(momentum=0.9), 1), (Sgd(momentum=0.0), 0), (Sgd(momentum=0.9, fused=False), 1),
        (TorchOptimizer(torch.optim.Adam, {"lr": 0.1}), 2),
        (TorchOptimizer(torch.optim.Adam, {"lr": 0.1, "amsgrad": True}), 3),
    ],
)  # fmt: skip
def test_what_an_optimizer_keeps_of_each_parameter_is_counted(optimizer, kept):
    assert kept_per_parameter(optimizer) == kept


def test_a_network_is_refused_if_adam_does_not_fit_beside_it(monkeypatch):
    """Four copies of the weights with Adam, three with momentum."""
    wide = [*TINY, "model.hidden=[500,500]"]
    size = sum(t.nbytes for t in build(composed(wide)).net.state_dict().values())
    monkeypatch.setattr(memory, "available_memory", lambda: 3 * size)
    build(composed([*wide, "optim=sgd"]))
    with pytest.raises(ConfigError, match=r"weights, gradients, 2 of the optimizer's\) takes"):
        build(composed([*wide, "optim=adam"]))


def test_a_factory_that_lacks_something_is_refused():
    with pytest.raises(ConfigError, match=r"optim: Bare\(lr=0.1\) cannot be used: .* no attribute 'sgd_momentum'"):
        configured(Bare, {})
