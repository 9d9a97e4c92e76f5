"""What a client hands back when its round ends: the message to the server, and what it keeps."""

from __future__ import annotations

from fedexp.core.algorithm import Algorithm, Private
from fedexp.core.checks import not_whole
from fedexp.core.state import Message, pick
from fedexp.core.views import LocalRound
from fedexp.errors import PlanError


def hand_back(algorithm: Algorithm, local: LocalRound, remembered: Private) -> tuple[Message, Private]:
    """The uploads and the new private slots: modules, then what was remembered, then what ``finish`` says."""
    message = _model(algorithm, local)
    layout = algorithm.facts.layout
    kept: Private = {m: pick(local.ends[phase], layout.part(m)) for m, phase in algorithm.kept_modules.items()}
    kept |= remembered
    for key, component in algorithm.using("finish"):
        out = component.finish(local.for_component(key))
        kept |= {f"{key}.{n}": t for n, t in out.slots.items()}
        message |= {f"{key}.{n}": dict(t) for n, t in out.uploads.items()}
    return message, kept


def _model(algorithm: Algorithm, local: LocalRound) -> Message:
    """The message with the trained weights; none where nothing travels."""
    if not algorithm.travelling:
        return {}
    weights = pick(local.ends[algorithm.uploading.name], algorithm.travelling)
    shared = pick(weights, algorithm.facts.layout.shared)
    for key, component in algorithm.using("uplink"):
        sent = component.uplink(shared, local.for_component(key))
        if sent.keys() != shared.keys():
            raise PlanError(not_whole(f"uplink of component {key!r}", sent, shared))
        shared = sent
    return {"model": {**weights, **shared}}
