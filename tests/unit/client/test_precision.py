"""Precisions: passes of the network are in them, everything around has 32 bits, and both loops agree bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from lightning.fabric.plugins.precision import MixedPrecision

from fedexp.algos.perfedavg import MetaGradient
from fedexp.algos.scaffold import Scaffold
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.precision import INITIAL_SCALE
from fedexp.config.compose import composed
from fedexp.config.identity import run_id
from fedexp.config.make import make
from fedexp.core.component import Component
from fedexp.core.state import Slot, Upload, number
from fedexp.errors import ConfigError
from fedexp.parts import parts
from fedexp.testing import Shuffled, play, tiny_net
from fedexp.testing.agreement import demand_equal
from tests.helpers import opened, work, worker_of

HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16, "bf16-true": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Sees(Component):
    """Writes down what a component is shown."""

    types: set = field(default_factory=set, compare=False)
    grads_seen: list = field(default_factory=list, compare=False)

    def loss(self, step):
        self.types.update((step.h.dtype, step.z.dtype, step.ce.dtype))

    def grads(self, grads, step):
        self.grads_seen.append({n: g.detach().float().clone() for n, g in grads.items()})
        return dict(grads)


def in_precision(name: str, kind=FabricLoop):
    return partial(kind, accelerator="cpu", precision=name)


@pytest.mark.parametrize("name", HALF)
def test_the_network_computes_in_it_and_components_see_32_bits(name):
    sees, inside = Sees(), set()
    with opened({"sees": sees}, loop=in_precision(name)) as engine:
        worker_of(engine).net.features[1].register_forward_hook(lambda _, __, out: inside.add(out.dtype))
        result = work(engine, 1)
    assert inside == {HALF[name]}
    assert sees.types == {torch.float32}
    assert {t.dtype for t in result.uplink["model"].values()} == {torch.float32}
    assert result.after.loss != 0


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("algo", ["fedavg", "map", "moon", "fedrod", "fedgen"])
def test_both_loops_agree_bit_for_bit(name, algo):
    components = {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}
    one, other = (play(components, norm=True, rounds=2, loop=in_precision(name, k)) for k in (FabricLoop, TrainerLoop))
    demand_equal(one, other, "the Trainer")


@pytest.mark.parametrize("name", HALF)
def test_the_weights_are_nearly_those_of_32_bits(name):
    plain, other = play({}, rounds=2), play({}, rounds=2, loop=in_precision(name))
    assert plain.digests() != other.digests()
    for key, tensor in plain.progress.state.model.items():
        torch.testing.assert_close(other.progress.state.model[key], tensor, atol=0.02, rtol=0.05)


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("components", [{"scaffold": Scaffold()}, {"meta": MetaGradient(alpha=0.1)}], ids=["c", "meta"])
def test_nothing_of_a_client_is_left_for_the_next(name, components):
    demand_equal(
        *(play(components, loop=in_precision(name), executor=e) for e in (Shuffled, Shuffled)), "the same again"
    )
    demand_equal(
        play(components, loop=in_precision(name)), play(components, loop=in_precision(name), executor=Shuffled), "order"
    )


# ---------------------------------------------------------------- scaled losses
def test_gradients_are_unscaled_before_anybody_sees_them():
    seen = {}
    for name in ("32-true", "16-mixed"):
        sees = Sees()
        with opened({"sees": sees}, loop=in_precision(name)) as engine:
            work(engine, 1)
        seen[name] = sees.grads_seen[0]
    for key, grad in seen["32-true"].items():
        assert grad.abs().max() > 0.01
        assert torch.allclose(seen["16-mixed"][key], grad, atol=2e-3), key


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Component):
    """Asks for the gradient at the weights as they are, which is known."""

    differences: list = field(default_factory=list, compare=False)

    def grads(self, grads, step):
        again = step.gradient({n: w.detach().clone() for n, w in step.weights.items()})
        self.differences.append(max(float((again[n] - g).abs().max()) for n, g in grads.items()))
        return dict(grads)


def test_gradients_at_other_weights_are_unscaled_too():
    elsewhere = Elsewhere()
    with opened({"elsewhere": elsewhere}, loop=in_precision("16-mixed")) as engine:
        work(engine, 1)
    assert max(elsewhere.differences) < 1e-5


@dataclass(frozen=True, kw_only=True)
class Explodes(Component):
    """Has a loss that overflows when it is scaled, at the first step."""

    def loss(self, step):
        return step.z.sum() * 60000 * 2000 / INITIAL_SCALE if step.index == 0 else None


def test_a_step_whose_scaled_gradient_overflows_is_left_out():
    sees = Sees()
    with opened({"explodes": Explodes(), "sees": sees}, loop=in_precision("16-mixed")) as engine:
        result = work(engine, 1)
    assert result.error is None
    assert not all(g.isfinite().all() for g in sees.grads_seen[0].values())
    assert all(t.isfinite().all() for t in result.uplink["model"].values())


# ---------------------------------------------------------------- what is kept and sent
@dataclass(frozen=True, kw_only=True)
class Keeps(Component):
    """Keeps the trained model."""

    def slots(self):
        return (Slot("last", "client", lambda init: dict(init.model)),)

    def uploads(self):
        return (Upload("one", number(0.0), "sum"),)

    def finish(self, local):
        from fedexp.core.state import Out

        return Out(slots={"last": local.last}, uploads={"one": {"value": torch.tensor(1.0)}})


@pytest.mark.parametrize("kind", [FabricLoop, TrainerLoop])
def test_weights_of_16_bits_are_kept_and_averaged_in_32(kind):
    engine = play({"keeps": Keeps()}, norm=True, loop=in_precision("bf16-true", kind))
    floats = [t for t in engine.progress.state.model.values() if t.is_floating_point()]
    assert {t.dtype for t in floats} == {torch.float32}
    rounded = [torch.equal(t, t.bfloat16().float()) for t in floats]
    assert not all(rounded)  # a mean of weights with 16 bits needs more of them


# ---------------------------------------------------------------- refusals and ids
def problems(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parts(composed([*overrides, "loop.accelerator=cpu"]))
    return str(caught.value)


def test_fused_optimizers_that_unscale_by_themselves_are_refused():
    said = problems("optim=adam", "loop.precision=16-mixed")
    assert said.startswith("loop.precision=16-mixed: Adam(")
    assert said.endswith("Add optim.fused=false.")
    for fine in ("bf16-mixed", "bf16-true", "32-true"):
        parts(composed(["optim=adam", f"loop.precision={fine}", "loop.accelerator=cpu"]))
    parts(composed(["optim=sgd", "loop.precision=16-mixed", "loop.accelerator=cpu"]))


def test_what_torch_cannot_do_on_a_device_is_refused_with_a_remedy(monkeypatch):
    def refuse(_):
        raise RuntimeError("User specified an unsupported autocast device_type 'abacus'")

    monkeypatch.setattr(MixedPrecision, "forward_context", refuse)
    said = problems("loop.precision=16-mixed")
    assert said == (
        "loop.precision=16-mixed: torch cannot do that on cpu (User specified an unsupported autocast device_type "
        "'abacus'). Use loop.precision=bf16-mixed."
    )


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match=r"loop\.precision must be one of 32-true, bf16-mixed, 16-mixed, bf16-true"):
        composed(["loop.precision=8-true"])


def test_what_changes_numbers_changes_the_id_and_nothing_else_does():
    usual = run_id(composed(["loop=fabric"]))
    assert usual == run_id(composed(["loop=trainer"])) == run_id(composed(["loop.precision=32-true"]))
    assert len({usual, *(run_id(composed([f"loop.precision={name}"])) for name in HALF)}) == 4
    assert len({usual, *(run_id(composed([f"loop.compile={c}"])) for c in ("true", "aot_eager"))}) == 3
    callbacks = "loop.callbacks=[{_target_: lightning.pytorch.callbacks.Timer}]"
    assert run_id(composed(["loop=trainer", callbacks])) == usual


def test_runs_from_before_keep_their_ids():
    config = composed(["loop=fabric"])
    old = {**config, "loop": {k: config["loop"][k] for k in ("_target_", "accelerator")}}
    assert run_id(old) == run_id(config)


# ---------------------------------------------------------------- compiled networks
@pytest.mark.parametrize("kind", [FabricLoop, TrainerLoop])
def test_a_network_is_compiled_once_for_all_clients(kind):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    plain = play({}, rounds=1, norm=True)
    graphs = []
    with opened({}, loop=partial(kind, accelerator="cpu", compile="aot_eager"), norm=True) as engine:
        for client in (0, 1, 2, 0, 1, 2, 1):
            work(engine, client)
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[3] == graphs[-1]  # shapes and modes are known by then
    compiled = play({}, rounds=1, norm=True, loop=partial(kind, accelerator="cpu", compile="aot_eager"))
    for name, tensor in plain.progress.state.model.items():
        assert torch.allclose(compiled.progress.state.model[name], tensor, atol=1e-5), name


@pytest.mark.parametrize("name", ["bf16-mixed", *(pytest.param(n, marks=pytest.mark.slow) for n in list(HALF)[1:])])
def test_a_compiled_network_in_another_precision(name):
    torch._dynamo.reset()
    one, other = (
        play({}, rounds=1, norm=True, loop=partial(FabricLoop, accelerator="cpu", precision=name, compile=compiled))
        for compiled in (False, "aot_eager")
    )
    for key, tensor in one.progress.state.model.items():
        assert torch.allclose(other.progress.state.model[key].float(), tensor.float(), atol=0.02), key


@pytest.mark.slow
def test_torchs_own_compiler():
    torch._dynamo.reset()
    plain, compiled = (
        play({}, rounds=2, loop=partial(FabricLoop, accelerator="cpu", compile=c)) for c in (False, True)
    )
    for name, tensor in plain.progress.state.model.items():
        assert torch.allclose(compiled.progress.state.model[name], tensor, atol=1e-5), name
    assert tiny_net().features._compiled_call_impl is None
