"""The plan: bytes before anything runs, and what is printed."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from fedexp.algos.ditto import Ditto
from fedexp.algos.fedrs import ClassWeightedAggregation, RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.build import build
from fedexp.plan import forecast
from fedexp.state import nbytes
from fedexp.testing import play

MODEL = 4 * (16 * 8 + 8 + 8 * 4)  # the tiny network: 16-8-4, one bias
NORM = 4 * 4 * 8 + 8  # scale, shift, mean, variance; and a counter


@pytest.mark.parametrize(
    ("components", "norm", "down", "up"),
    [
        ({}, False, {"model": MODEL}, {"model": MODEL}),
        ({}, True, {"model": MODEL + NORM}, {"model": MODEL + NORM}),
        ({"rs": RestrictedSoftmax()}, False, {"model": MODEL}, {"model": MODEL}),
        ({"d": Ditto(during=("ditto",))}, False, {"model": MODEL}, {"model": MODEL}),
        (
            {"s": Scaffold()}, False, {"model": MODEL, "s.c": MODEL}, {"model": MODEL, "s.dc": MODEL},
        ),
        ({"rows": ClassWeightedAggregation()}, False, {"model": MODEL}, {"model": MODEL, "rows.counts": 4 * 4}),
    ],
    ids=["fedavg", "norm", "fedrs", "ditto", "scaffold", "rows"],
)  # fmt: skip
def test_the_forecast_is_what_the_ledger_observes(components, norm, down, up):
    engine = play(components, rounds=2, norm=norm)
    assert forecast(engine.algorithm) == (down, up)
    messages = 2 * engine.sampler.size
    assert engine.ledger.down == messages * sum(down.values())
    assert engine.ledger.up == messages * sum(up.values())


@pytest.mark.parametrize("algo", ["fedavg", "scamap", "ditto_rs", "fedgela", "fedrema", "fedmr"])
def test_the_plan_of_a_configured_run_is_what_is_sent(configured, tmp_path, algo):
    import fedexp

    config = configured(f"algo={algo}", "rounds=2")
    plan = build(config).plan.content
    result = fedexp.run({**config, "out": str(tmp_path)})
    assert result.summary["bytes"]["down"] == 2 * plan["bytes_per_round"]["down"]
    assert result.summary["bytes"]["up"] == 2 * plan["bytes_per_round"]["up"]
    assert plan["bytes_per_round"]["up"] == 3 * plan["bytes_per_client_and_round"]["up"]
    assert json.loads((result.path / "plan.json").read_text()) == json.loads(json.dumps(plan))


def test_what_the_plan_says(configured):
    experiment = build(configured("algo=scamap"))
    content = experiment.plan.content
    assert content["components"] == {
        "rs": "RestrictedSoftmax", "hpm": "InheritedPrivateModel", "scaffold": "Scaffold",
    }  # fmt: skip
    assert [p["name"] for p in content["phases"]] == ["local", "personal"]
    assert set(content["slots"]) == {"hpm.model", "hpm.seen", "scaffold.c", "scaffold.ck"}
    assert content["slots"]["scaffold.c"]["down"]
    assert content["cohort"] == {"clients": 6, "per_round": 3}
    net = experiment.net
    total = sum(p.numel() for p in net.parameters())
    assert content["parameters"] == {
        "total": total, "features": total - 160, "classifier": 160, "shared": total,
    }  # fmt: skip
    assert content["bytes_kept_per_client"] == 2 * nbytes(dict(net.named_parameters())) + 8  # two models and a counter
    assert content["seams"]["logits"] == ["rs"]
    assert len(content["partition"]["counts"]) == 6
    json.dumps(content)


def test_the_digest_tells_plans_apart_and_nothing_else(configured):
    def digest(*overrides: str) -> str:
        return build(configured(*overrides)).plan.digest

    plain = digest()
    assert digest("optim.lr=0.5", "rounds=9", "local.epochs=2") == plain  # those are in the run's id
    others = {digest(o) for o in ("algo=fedrs", "seed=1", "model.hidden=[8]")}
    assert len(others | {plain}) == 4


def test_the_plan_is_printed_whole(configured):
    plan = build(configured("algo=scamap", "cohort.clients=30")).plan
    console = Console(file=io.StringIO(), width=140)
    replace(plan, content={**plan.content, "notes": ["[bold]as it is[/]"]}).show(console)
    text = console.file.getvalue()
    for part in ("scamap · digits", "personal", "rs.logits", "scaffold.grads", "hpm.loss", "InheritedPrivateModel",
                 "scaffold.ck", "15 of 30 clients", "first 20 of 30", "note: [bold]as it is[/]"):  # fmt: skip
        assert part in text, part


def test_fedavg_is_printed_as_such(configured):
    console = Console(file=io.StringIO(), width=140)
    build(configured()).plan.show(console)
    assert "none (FedAvg)" in console.file.getvalue()
