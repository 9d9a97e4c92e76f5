"""What is refused when components are compiled: sentences that say what is wrong and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from fedexp.config.suggest import nearest
from fedexp.core.component import Component, Phase, overrides
from fedexp.core.state import Init, Layout, Slot, Tree
from fedexp.core.views import Facts, no_classifier

if TYPE_CHECKING:
    from fedexp.core.algorithm import Components


def misspelt_seams(components: Components) -> Iterable[str]:
    """Public methods that are no seams."""
    seams = [n for n in vars(Component) if not n.startswith("_")]
    for key, component in components.items():
        kinds = [k for k in type(component).__mro__ if k not in (Component, object)]
        public = dict.fromkeys(n for k in kinds for n, v in vars(k).items() if _is_method(v) and not n.startswith("_"))
        for name in (n for n in public if n not in seams):
            yield (
                f"component {key!r} has a public method {name!r}, which is not a seam and is never called. "
                f"{nearest(name, seams)} The name of a helper begins with an underscore."
            )


def clashing(components: Components) -> Iterable[str]:
    """Components that say themselves that they cannot be combined."""
    keys = list(components)
    for place, (key, component) in enumerate(components.items()):
        before, after = ({k: components[k] for k in some} for some in (keys[:place], keys[place + 1 :]))
        yield from (f"component {key!r} {reason}" for reason in component.clashes(before, after))


def without_classifier(components: Components) -> Iterable[str]:
    """Components that run the network's own classifier outside of steps, where another one replaces it in tests."""
    replacing = [k for k, c in components.items() if overrides(c, "head") and {"eval", "*"} & set(c.during)]
    if replacing:
        yield from (no_classifier(k, replacing[0]) for k, c in components.items() if c.needs_classifier)


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)


def unknown_parts(components: Components, layout: Layout) -> Iterable[str]:
    """Private parts that the network does not have."""
    for key, component in components.items():
        for part in component.private_part().split("+"):
            if part not in layout.parts:
                yield f"private_part of component {key!r} is {part!r}. {nearest(part, sorted(layout.parts))}"


def unfit_modules(
    components: Components, layout: Layout, slots: Mapping[str, Slot], phases: tuple[Phase, ...]
) -> Iterable[str]:
    """Modules that cannot be sent, kept or trained."""
    for key, component in components.items():
        own = [m.split(".")[1] for m in layout.modules if m.startswith(f"{key}.")]
        for name in component.shared_modules:
            if name not in own:
                yield f"shared_modules of component {key!r} has {name!r}, which modules does not. {nearest(name, own)}"
        for name in (f"{key}.{n}" for n in own):
            if name in slots:
                yield f"component {key!r} has a slot and a module {name!r}: a private module is a slot of its name"
            parameters = layout.parts[name].intersection(layout.parameters)
            trained = frozenset[str]().union(*(layout.trainable(p.train) for p in phases if _knows(layout, p)))
            if parameters - trained:
                yield f"no phase trains the module {name!r}. Train 'all', or add '+{name}' to the train of a phase."
        if own and not {"*", *(p.name for p in phases)} & set(component.during):
            yield f"algo.{key}.during must name a phase of training, after which its modules are kept"


def _knows(layout: Layout, phase: Phase) -> bool:
    return all(part in layout.parts for part in phase.train.split("+"))


def unfit_phases(
    phases: tuple[Phase, ...], facts: Facts, slots: Mapping[str, Slot], init: Callable[[str], Init]
) -> Iterable[str]:
    """Phases of a client's round with fields that cannot be, or that do not fit each other."""
    for phase in phases:
        yield from _numbers(phase, facts.layout)
        if (slot := slots.get(phase.start)) and slot.scope == "client":
            start = slot.init(init(phase.start))
            if start.keys() != facts.initial.keys():
                yield not_whole(f"slot {phase.start!r}, from which phase {phase.name!r} starts,", start, facts.initial)
        elif phase.start not in ("received", "previous"):
            yield (
                f"phase {phase.name!r} starts from {phase.start!r}, which is not a private slot of the proposing "
                "component. Use 'received', 'previous' or own('slot')."
            )
    if phases and (phases[0].start == "previous" or phases[0].continues):
        yield f"phase {phases[0].name!r} is the first: it has no phase before it to start from or to continue"
    for last, phase in pairwise(phases):
        if phase.continues and phase.batches != last.batches:
            yield f"phase {phase.name!r} continues {last.name!r}, but takes another number of batches in a step"


def unfit_tests(phases: tuple[Phase, ...], layout: Layout) -> Iterable[str]:
    """Phases for the test that would depend on another one, or leave something behind."""
    for phase in phases:
        yield from _numbers(phase, layout)
        if phase.start != "previous" or phase.continues or phase.uploads:
            yield (
                f"phase {phase.name!r} is for the test: it starts from the model to be tested (start='previous'), "
                "continues no other phase and uploads nothing"
            )


def _numbers(phase: Phase, layout: Layout) -> Iterable[str]:
    """What is wrong with the fields of one phase."""
    where = f"phase {phase.name!r}"
    for part in phase.train.split("+"):
        if part not in layout.parts:
            yield f"{where} trains {part!r}. {nearest(part, sorted(layout.parts))}"
    if _knows(layout, phase) and not layout.trainable(phase.train):
        yield f"{where} trains {phase.train!r}, of which this network has no parameters"
    if phase.epochs is not None and not phase.epochs > 0:
        yield f"{where} has epochs={phase.epochs}; they must be greater than 0, or None"
    if not 0 <= phase.begin < phase.end <= 1:
        yield f"{where} has begin={phase.begin:g} and end={phase.end:g}; it must be 0 <= begin < end <= 1"
    if not (isinstance(phase.batches, int) and phase.batches > 0):
        yield f"{where} has batches={phase.batches}; a step takes a whole number of them, at least one"


def not_whole(whose: str, tree: Tree, whole: Tree) -> str:
    """What a tree lacks or has too much, as a sentence."""
    lost, more = sorted(whole.keys() - tree.keys()), sorted(tree.keys() - whole.keys())
    wrong = f"lacks {lost[0]!r}" if lost else f"has {more[0]!r}, which the network does not"
    return f"{whose} must give a whole tree, but it {wrong}. Begin with the weights that are given: {{**weights, ...}}"
