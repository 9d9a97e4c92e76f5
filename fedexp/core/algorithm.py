"""The algorithm: components compiled once, with all checking done, then only folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from fedexp.config.schema import problems_of
from fedexp.core.checks import (
    clashing,
    misspelt_seams,
    not_whole,
    unfit_modules,
    unfit_phases,
    unfit_tests,
    unknown_parts,
    without_classifier,
)
from fedexp.core.component import Component, Phase, overrides
from fedexp.core.seeding import torch_rng
from fedexp.core.state import Init, Layout, Message, ReadOnlyTree, ServerState, Slot, Tree, Upload, part_of_model
from fedexp.core.views import NO_PUBLIC, Facts, View, Views
from fedexp.errors import PlanError

PER_STEP = ("head", "logits", "loss", "grads")
SEAMS = (
    "modules", "private_part", "plan", "start", *PER_STEP, "finish", "uplink", "weigh", "serve", "update", "released",
    "view",
)  # fmt: skip

Components = Mapping[str, Component]
Private = dict[str, Tree]  # "component.slot"; what a client keeps between rounds


@dataclass(frozen=True)
class Algorithm:
    """Named components in the order in which they fold, with the phases, slots and messages they declare."""

    components: Components
    facts: Facts
    phases: tuple[Phase, ...]  # of a client's round
    slots: Mapping[str, Slot]  # "component.slot"
    uploads: Mapping[str, Upload]  # "component.upload"
    constants: Mapping[str, Tree]
    test_phases: tuple[Phase, ...] = ()  # before a personal model is tested

    @classmethod
    def compile(cls, components: Components, facts: Facts) -> Algorithm:
        """Checks that the components fit together and freezes their declarations.

        Raises:
            PlanError: With every problem found.
        """
        ordered = _sort_by_needs(components)
        plan = _plan(ordered)
        phases, tests = (tuple(p for p in plan if p.test is kind) for kind in (False, True))
        facts = replace(facts, layout=_share(facts.layout, ordered), initial=ReadOnlyTree(facts.initial))
        slots = {f"{k}.{s.name}": s for k, c in ordered.items() for s in c.slots()}
        uploads = {f"{k}.{u.name}": u for k, c in ordered.items() for u in c.uploads()}
        problems = [
            *misspelt_seams(ordered),
            *_out_of_range(ordered, facts),
            *_misfits(ordered, plan),
            *_without_public(ordered, facts),
            *without_classifier(ordered),
            *clashing(ordered),
            *unknown_parts(ordered, facts.layout),
            *unfit_modules(ordered, facts.layout, slots, phases),
            *unfit_phases(phases, facts, slots, lambda name: _init(facts, name)),
            *unfit_tests(tests, facts.layout),
        ]
        if problems:
            raise PlanError("\n".join(problems))
        slots |= {m: Slot(m.split(".")[1], "client", part_of_model(m)) for m in _kept_modules(ordered, facts.layout)}
        constants = {n: s.init(_init(facts, n)) for n, s in slots.items() if s.scope == "constant"}
        return cls(ordered, facts, phases, slots, uploads, constants, tests)

    # ------------------------------------------------------------ what the declaration says
    @property
    def personal(self) -> bool:
        """Whether clients get a model of their own, other than the locally trained copy of the server's."""
        return any(c.personal for c in self.components.values())

    @property
    def personalizes(self) -> bool:
        """Whether clients are tested with a model of their own, kept or adapted before the test."""
        return self.personal or bool(self.test_phases)

    @property
    def global_view(self) -> bool:
        """Whether the server's model is complete and can be tested."""
        return all(c.global_view for c in self.components.values())

    @property
    def uploading(self) -> Phase:
        """The phase whose end is sent to the server."""
        return next(p for p in self.phases if p.uploads)

    @property
    def all_phases(self) -> tuple[Phase, ...]:
        """The phases of a client's round, then those before a test."""
        return (*self.phases, *self.test_phases)

    @property
    def travelling(self) -> tuple[str, ...]:
        """The tensors of the network that are sent: shared parameters and statistics."""
        return (*self.facts.layout.shared, *self.facts.layout.statistics)

    @cached_property
    def kept_modules(self) -> dict[str, str]:
        """The modules that clients keep, each with the phase after which: the last that its component acts in."""
        kept = _kept_modules(self.components, self.facts.layout)
        return {m: self._last_phase(self.components[m.split(".")[0]]) for m in kept}

    def _last_phase(self, component: Component) -> str:
        names = [p.name for p in self.phases]
        return [n for n in names if "*" in component.during or n in component.during][-1]

    def term_names(self, phase: str) -> list[str]:
        """The loss terms of a phase: the cross-entropy, and one for each component, or each of its ``terms``."""
        acting = self.active(phase, "loss")
        return ["ce", *(name for k, c in acting for name in ([f"{k}.{t}" for t in c.terms] or [k]))]

    def active(self, phase: str, seam: str) -> list[tuple[str, Component]]:
        """The components that act on a per-step seam in a phase."""
        acting = ((k, c) for k, c in self.components.items() if phase in c.during or "*" in c.during)
        return [(k, c) for k, c in acting if overrides(c, seam)]

    def using(self, seam: str) -> list[tuple[str, Component]]:
        """The components that override a seam that is called once a round."""
        return [(k, c) for k, c in self.components.items() if overrides(c, seam)]

    def keeps(self) -> frozenset[str]:
        """The messages kept by client id on the server."""
        asked = {m if m == "model" else f"{k}.{m}" for k, c in self.components.items() for m in c.keeps}
        return frozenset(asked | {n for n, u in self.uploads.items() if u.reduce == "keep"})

    # ------------------------------------------------------------ state and messages
    def init(self, name: str, model: Tree | None = None) -> Init:
        """What the initial value of a slot, or the shape of an upload, may depend on."""
        return _init(self.facts, name, model)

    def fresh_state(self) -> ServerState:
        """The server before the first round."""
        server = {n: s.init(self.init(n)) for n, s in self.slots.items() if s.scope == "server"}
        mailboxes: dict[str, dict[int, Tree]] = {n: {} for n, s in self.slots.items() if s.scope == "mailbox"}
        kept = {n for m in self.kept_modules for n in self.facts.layout.parts[m]}
        model = {n: t for n, t in self.facts.initial.items() if n not in kept}
        return ServerState(0, model, server, mailboxes)

    def broadcast(self, state: ServerState) -> Message:
        """What the server sends to every client of a round."""
        return self.sent(state.message)

    def sent(self, message: Message) -> Message:
        """The part of the server's state that clients get to see."""
        known = message.get("model", {})
        model = {n: known[n] for n in self.travelling if n in known}
        slots = (n for n, s in self.slots.items() if s.scope == "server" and s.down and n in message)
        return {**({"model": model} if model else {}), **{n: message[n] for n in slots}}

    def mail(self, state: ServerState, client: int) -> Message:
        """What the server sends to one client alone."""
        boxes = ((n, s) for n, s in self.slots.items() if s.scope == "mailbox" and s.down)
        return {
            n: box[client] if client in (box := state.mailboxes[n]) else s.init(self.init(n, state.model))
            for n, s in boxes
        }

    def downlink(self, state: ServerState, client: int) -> Message:
        """All that the server sends to a client."""
        return {**self.broadcast(state), **self.mail(state, client)}

    def open(self, message: Message, private: Private) -> tuple[Tree, Private]:
        """The received weights, and the client's private slots, made where it has none yet."""
        model = {**self.facts.initial, **message.get("model", {})}
        for name in self.kept_modules:
            model |= private.get(name, {})
        missing = (n for n, s in self.slots.items() if s.scope == "client" and n not in private)
        return model, {**private, **{n: self.slots[n].init(self.init(n, model)) for n in missing}}

    def views(self, *sources: Mapping[str, Tree]) -> Views:
        """The slots as components see them, by component and name, from trees keyed ``component.slot``."""
        own: dict[str, dict[str, Tree]] = {key: {} for key in self.components}
        for name, tree in ((n, t) for source in sources for n, t in source.items() if n in self.slots):
            key, _, slot = name.partition(".")
            own[key][slot] = ReadOnlyTree(tree)
        return {key: MappingProxyType(slots) for key, slots in own.items()}

    def compose(self, weights: Tree, view: View, *seams: str) -> Tree:
        """Folds ``start``, ``view`` or ``released`` over the components."""
        for seam in seams:
            for key, component in self.using(seam):
                made: Tree = getattr(component, seam)(ReadOnlyTree(weights), view.for_component(key))
                if made.keys() != weights.keys():
                    raise PlanError(not_whole(f"{seam} of component {key!r}", made, weights))
                weights = made
        return weights

    def released(self, state: ServerState) -> Tree:
        """The server's whole model as it is tested, saved and fine-tuned."""
        return self.compose(state.model, View(self.views(self.constants, state.slots), None, self.facts), "released")


# ---------------------------------------------------------------- compiling
def _sort_by_needs(components: Components) -> dict[str, Component]:
    """Needs first, then yaml order."""
    for key, component in components.items():
        if lost := [n for n in component.needs if n not in components]:
            raise PlanError(
                f"component {key!r} needs {', '.join(map(repr, lost))}, but the algorithm has only "
                f"{sorted(components)}. Add it to the algorithm's yaml under that key."
            )
    ordered: dict[str, Component] = {}
    while len(ordered) < len(components):
        ready = [k for k, c in components.items() if k not in ordered and all(n in ordered for n in c.needs)]
        if not ready:
            raise PlanError(f"components need each other in a circle: {sorted(set(components) - set(ordered))}")
        ordered[ready[0]] = components[ready[0]]
    return ordered


def _plan(components: Components) -> tuple[Phase, ...]:
    phases = [Phase("local", uploads=True)]
    for key, component in components.items():
        edited = component.plan(list(phases))
        if not isinstance(edited, Sequence) or not all(isinstance(p, Phase) for p in edited):
            raise PlanError(f"plan of component {key!r} must return a list of phases, not {edited!r}")
        phases = [replace(p, start=p.start.replace("own:", f"{key}.", 1)) for p in edited]
    return tuple(phases)


def _share(layout: Layout, components: Components) -> Layout:
    """The layout with what travels. Unknown parts are left out here, and said by ``unknown_parts``."""
    parts = [p for c in components.values() for p in c.private_part().split("+") if p in layout.parts]
    private = frozenset[str]().union(*(layout.parts[p] for p in (*parts, *_private_modules(components, layout))))
    return replace(
        layout,
        shared=tuple(n for n in layout.parameters if n not in private),
        statistics=tuple(n for n in layout.buffers if n not in private),
    )


def _private_modules(components: Components, layout: Layout) -> list[str]:
    """The modules that do not travel; all of them, where their component is not part of the algorithm."""
    shared = {f"{k}.{m}" for k, c in components.items() for m in c.shared_modules}
    return [m for m in layout.modules if m not in shared]


def _kept_modules(components: Components, layout: Layout) -> list[str]:
    """The private modules of this algorithm's components."""
    return [m for m in _private_modules(components, layout) if m.split(".")[0] in components]


def _out_of_range(components: Components, facts: Facts) -> Iterable[str]:
    for key, component in components.items():
        yield from (f"algo.{key}.{problem}" for problem in (*problems_of(component), *component.problems(facts)))


def _without_public(components: Components, facts: Facts) -> Iterable[str]:
    if not facts.public:
        yield from (f"component {key!r} {NO_PUBLIC}" for key, c in components.items() if c.needs_public)


def _misfits(components: Components, phases: tuple[Phase, ...]) -> Iterable[str]:
    names = [p.name for p in phases]
    if len(set(names)) != len(names):
        yield f"two phases share a name: {names}. Two components of one kind cannot be combined."
    if len(sending := [p.name for p in phases if p.uploads]) != 1:
        yield f"exactly one phase must upload, not {sending or 'none'} of {names}"
    for key, component in components.items():
        if unknown := sorted(set(component.during) - {*names, "eval", "*"}):
            yield (
                f"component {key!r} acts on phases {unknown}, but the plan has {names}. "
                f"Add a component that makes such a phase, or set algo.{key}.during."
            )
    yield from _two_heads(components, phases)
    if len(weighing := [k for k, c in components.items() if overrides(c, "weigh")]) > 1:
        yield f"components {weighing} both weigh the clients; only one can"
    kept = {k: c.private_part().split("+") for k, c in components.items()}
    for part in sorted({p for parts in kept.values() for p in parts} - {"none"}):
        if len(keeping := [k for k, parts in kept.items() if part in parts]) > 1:
            yield f"components {keeping} each put their own {part} in place of the server's; only one can"


def _two_heads(components: Components, phases: tuple[Phase, ...]) -> Iterable[str]:
    for phase in phases:
        heads = [k for k, c in components.items() if overrides(c, "head") and {phase.name, "*"} & set(c.during)]
        if len(heads) > 1:
            yield f"components {heads} both replace the classifier in phase {phase.name!r}; only one can"
        if heads and phase.train == "classifier":
            yield f"phase {phase.name!r} trains only the classifier, which component {heads[0]!r} replaces"


def _init(facts: Facts, name: str, model: Tree | None = None) -> Init:
    return Init(
        model=facts.initial if model is None else model,
        initial=facts.initial,
        layout=facts.layout,
        n_classes=facts.n_classes,
        feature_dim=facts.feature_dim,
        n_clients=facts.n_clients,
        counts=facts.counts,
        generator=torch_rng(facts.seed, "slot", name),
    )
