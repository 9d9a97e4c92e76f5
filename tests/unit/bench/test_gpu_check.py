"""``gpu-check`` without an accelerator: it runs, tells what it could not check, and fails where something fails."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from fedexp.bench import gpu_checks
from fedexp.bench.__main__ import main
from fedexp.core.component import Component

TRIAL = ("gpu-check", "--device", "cpu", "--workloads", "W0", "--algos")


def test_a_trial_holds_and_says_what_it_could_not_check(tmp_path, capsys):
    assert main([*TRIAL, "fedavg", "scaffold", "--json", str(tmp_path / "found.json")]) == 0
    said = capsys.readouterr().out
    for words in (
        "a trial without an accelerator", "loop=trainer: equal bit for bit", "2 methods on a pretended device",
        "loop.precision=bf16-mixed, loop=trainer: equal bit for bit", "loop.compile=aot_eager",
        "not checked: memory of the device: only CUDA tells", "W0, a round of 18 steps",
    ):  # fmt: skip
        assert words in said, words
    findings = json.loads((tmp_path / "found.json").read_text())["gpu-check"]["findings"]
    assert {each["state"] for each in findings} == {"held", "measured", "not checked"}
    assert "speed of an accelerator" in {each["what"] for each in findings if each["state"] == "not checked"}


@dataclass(frozen=True, kw_only=True)
class OnTheHost(Component):
    """Uses a tensor of the host in a step."""

    def loss(self, step):
        return (step.facts.counts.sum() * step.h).mean() + (step.facts.counts[0, : step.n_classes] * step.z).mean()


@dataclass(frozen=True, kw_only=True)
class Waits(Component):
    """Looks at every loss."""

    def loss(self, step):
        return step.ce * (0.5 if step.ce.item() > 1 else 1.0)


@pytest.mark.parametrize(("component", "said"), [(OnTheHost(), "mixes devices"), (Waits(), "a training step waits")])
def test_a_method_that_is_wrong_on_a_device_fails(component, said, monkeypatch, capsys):
    monkeypatch.setattr(gpu_checks, "CHECKS", {"methods": gpu_checks.methods})
    monkeypatch.setattr(gpu_checks, "components_of", lambda _: {"wrong": component})
    assert main([*TRIAL, "fedavg"]) == 1
    assert said in capsys.readouterr().out


def test_a_check_that_breaks_has_failed_and_the_others_go_on(monkeypatch, capsys):
    def breaks(_):
        raise ArithmeticError("planned")
        yield

    monkeypatch.setattr(gpu_checks, "CHECKS", {"broken": breaks, "memory": gpu_checks.memory})
    assert main([*TRIAL, "fedavg"]) == 1
    said = capsys.readouterr().out
    assert "failed: broken: ArithmeticError: planned" in said
    assert "not checked: memory of the device" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpu-check", "--device", "cuda"), "--device cuda is not on this machine. Use --device cpu for a trial."),
        (("gpu-check", "--device", "cpu", "--algos", "fedavgg"), "Did you mean 'fedavg'"),
        (("gpu-check", "--device", "cpu", "--algos", "W1"), "--algos W1: this is not known."),
        (("gpu-check", "--device", "cpu", "--workloads", "map"), "--workloads map: this is not known."),
        (("W0", "--precision", "8-true"), "--precision must be one of 32-true, bf16-mixed, 16-mixed, bf16-true"),
        (("W0", "--device", "abacus"), "--device must be one of auto, cpu"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_answered(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
