"""The component: one idea from one paper, as a few overridden seams.

A component is a frozen dataclass of hyper-parameters. It holds no state: what must be remembered is declared with
``slots``, and handed back by ``finish`` and ``serve`` or given to ``remember``. FedAvg has no component at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from fedexp.core.state import Out, Slot, Tree, Upload

if TYPE_CHECKING:
    from fedexp.core.views import Facts, LocalRound, ServerRound, Step, View
    from fedexp.models.split import SplitModel


@dataclass(frozen=True)
class Phase:
    """One fit inside a client's round.

    The run's local setting gives a sequence of batches; the phase takes the part ``[begin, end)`` of it, at least one
    step. A phase that ``continues`` goes on in the batches of the phase before it and, if it trains the same part with
    the same optimizer settings and is not ``fresh``, also with its optimizer.

    A step takes ``batches`` batches, so that an epoch has as many times fewer steps: the loss is that of the first,
    ``Step.batch`` and ``Step.gradient`` reach the others.

    A phase with ``test`` runs when a personal model is about to be tested, from that model, and leaves nothing behind.
    It starts from "previous", has batches of its own, and the score without it is recorded too.
    """

    name: str
    start: str = "received"  # or "previous", or own("slot"): a private slot of the component that proposes the phase
    train: str = "all"  # a part, or several joined by "+"; a module beside the network is the part "component.module"
    epochs: float | None = None  # None: the run's local.epochs
    begin: float = 0.0
    end: float = 1.0
    continues: bool = False
    fresh: bool = False
    optim: Mapping[str, Any] = field(default_factory=dict)  # replaces settings of the run's optimizer
    scheduled: bool = True  # whether the run's schedule scales the learning rate
    uploads: bool = False  # exactly one phase of a plan: its end is what the server gets
    batches: int = 1  # in a step
    test: bool = False


@dataclass(frozen=True)
class Paper:
    """How the paper of a method weighs clients in the mean, and by which protocol it evaluates."""

    name: str
    weighting: Literal["uniform", "samples"]
    evaluate: str  # the name of a protocol, as in evaluate=name


def own(slot: str) -> str:
    """Names a private slot of the proposing component as the start of a phase."""
    return f"own:{slot}"


@dataclass(frozen=True, kw_only=True)
class Component:
    """The seams. Each has a neutral default and a fixed rule for combining several components, see the guide."""

    during: tuple[str, ...] = ("local",)  # phases in which the per-step seams act; "eval" is the test, "*" everything

    paper: ClassVar[Paper | None] = None  # how its authors weigh and evaluate; a run that differs says so
    needs_sgd: ClassVar[bool] = False  # reads LocalRound.normaliser of the phases in ``during``, which other rules lack
    needs_public: ClassVar[bool] = False  # True: refused without the setting ``public``; see ``ServerRound.public``
    needs_classifier: ClassVar[bool] = False  # runs the network's own outside of steps: refused where it is replaced
    terms: ClassVar[tuple[str, ...]] = ()  # names of the terms of ``loss``, if it returns several

    # ------------------------------------------------------------ declare: class variables, or properties of the fields
    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of components whose slots are read."""
        return ()

    @property
    def keeps(self) -> tuple[str, ...]:
        """Messages the server must keep by client, beside reducing them."""
        return ()

    @property
    def personal(self) -> bool:
        """Whether the method gives clients a model of their own."""
        return False

    @property
    def global_view(self) -> bool:
        """Whether the server's model is complete. If not, it is not tested."""
        return True

    @property
    def total_rounds(self) -> str | None:
        """Why its numbers depend on how many rounds the run has in all; None if they do not.

        A longer run cannot continue a finished one then.
        """
        return None

    @property
    def shared_modules(self) -> tuple[str, ...]:
        """Names of ``modules`` that travel: sent, averaged and kept by the server as a part of the model."""
        return ()

    @property
    def unbatched(self) -> str | None:
        """Why the steps of many clients cannot be taken at once (``loop=batched``), after "component 'key'".

        Inside such a step tensors are those of one client, but no number can be read from one that clients do not share
        (no ``if``, ``item`` or boolean index that depends on it, but in ``step.once``), nothing random is drawn, and
        ``step.gradient`` and ``step.remember`` do not work. ``fedexp.testing`` tries it.
        """
        return None

    @property
    def padded(self) -> bool:
        """Whether its seams of a step treat samples one by one, so that ``loop=batched`` may fill up batches.

        A mean over the batch does not. Without it, only clients whose batches have the same size take a step together.
        """
        return False

    def problems(self, facts: Facts) -> Iterable[str]:
        """Says what does not fit the run, each sentence starting with the field's name. Ranges are in the types.

        A rule for the rows of a classifier must refuse one of several layers, whose tensors are not rows of classes.
        """
        return ()

    def clashes(self, before: Mapping[str, Component], after: Mapping[str, Component]) -> Iterable[str]:
        """Says why it cannot be combined with other components, which fold before and after it.

        Each sentence goes on after "component 'key'". Combined by saying all of them.
        """
        return ()

    def note(self, facts: Facts) -> str | None:
        """Something the user should know of the run's numbers: told in the plan, at the start and in the summary."""
        return None

    def slots(self) -> Sequence[Slot]:
        """Declares what is remembered. Combined by union, under the component's key."""
        return ()

    def uploads(self) -> Sequence[Upload]:
        """Declares what is sent beside the model. Combined by union, under the component's key."""
        return ()

    def modules(self, net: SplitModel, n_classes: int) -> Mapping[str, nn.Module]:
        """Networks beside the network, made anew under the run's seed: a second head, a gate, a projection.

        They are trained with it by every phase that trains "all", or names "component.module". Each client keeps its
        own from the end of the last phase in ``during``, as a slot of the module's name, and starts its next round from
        it; neither the server's state nor the saved model has them. ``shared_modules`` travel instead. ``step.module``
        gives them back. Combined by union, under the component's key.
        """
        return {}

    def private_part(self) -> str:
        """Names the part of the network that never travels, or several joined by "+". Combined by union.

        A network without normalisation has an empty part "norm": keeping it (FedBN) is FedAvg then.
        """
        return "none"

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """Edits the list of phases. Combined by chaining."""
        return phases

    # ------------------------------------------------------------ client, once a round
    def start(self, weights: Tree, view: View) -> Tree:
        """Composes the weights a client starts from, or is tested with. Combined by chaining."""
        return weights

    def finish(self, local: LocalRound) -> Out:
        """Hands back new private slots and uploads, as declared. Combined by union.

        ``local.record`` writes down a number. What the server makes of a round has the share of that round's clients
        only: a component that subtracts a client's own share from a mean must remember whether it is in there (FD).
        """
        return Out()

    def uplink(self, weights: Tree, local: LocalRound) -> Tree:
        """Edits the parameters to be sent. Combined by chaining."""
        return weights

    # ------------------------------------------------------------ client, every step
    def head(self, h: Tensor, step: Step) -> Tensor | None:
        """Replaces the network's classifier. At most one component per phase may."""
        return None

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """Edits the logits before the cross-entropy. Combined by chaining."""
        return z

    def loss(self, step: Step) -> Tensor | Mapping[str, Tensor] | None:
        """A term to be added to the cross-entropy; None where there is none. Combined by summing.

        Several terms, named in ``terms``, are recorded apart.
        """
        return None

    def grads(self, grads: Tree, step: Step) -> Tree:
        """Edits the gradients after the backward pass and before clipping. Combined by chaining.

        What is returned is the optimizer's from then on: the first gradients become its momentum, in their place, so
        return no tensor that is kept. A weight whose gradient is left out is not moved. ``step.weights`` are live:
        clone what must outlast the step. ``local.clip`` acts on all that is added here, the pull of a proximal term
        included.
        """
        return grads

    # ------------------------------------------------------------ server, once a round
    def weigh(self, counts: Tensor) -> Tensor | None:
        """Weights of the cohort's clients from their class counts [m, C]; None leaves the run's weighting.

        A method that is derived for uniform weights (FedDyn) asks for them here: a run may weigh by samples.
        """
        return None

    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]] | None:
        """New values of server slots and mailboxes (by client id). Combined by union, needs first.

        All components serve before the first ``update``, so ``server.delta`` is the plain mean minus the model here.
        State of a server optimizer belongs to its place in the chain: set it in ``update``, with ``server.remember``.
        ``server.reduced`` has no entry for an upload that nobody sent. ``server.cohort`` are the clients whose uploads
        came; the others' share of a mean over all clients is for the method to add, and a mean that is sent down has a
        client's own share in it only if the client was in the last cohort. A slot keeps the names and shapes that it
        begins with: begin with zeros, not with nothing. Return new trees; do not write into those you are given.
        """
        return None

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """Edits the server's step, mean minus model, on the travelling parameters. Combined by chaining.

        ``delta`` (and ``server.delta``) is what the components before have made of it. Return a step for every name in
        it. Running statistics are not in it, so no server optimizer can spoil a variance: they become the clients'
        mean, unless a step for them (new minus ``server.model``) is returned too; the last component to do so counts.
        """
        return delta

    # ------------------------------------------------------------ test
    def released(self, weights: Tree, view: View) -> Tree:
        """The server's whole model as it is tested, saved and fine-tuned, where that is not the one it sends.

        Combined by chaining. ``view`` shows server slots and constants; its ``info`` is None.
        """
        return weights

    def view(self, weights: Tree, view: View) -> Tree:
        """The weights a client would use for itself. Combined by chaining."""
        return weights

    # ------------------------------------------------------------ for tests
    def neutral(self) -> Component | None:
        """The same component at a setting that makes the server's model equal to FedAvg's, if there is one."""
        return None


def overrides(component: Component, seam: str) -> bool:
    """Whether a component overrides a seam."""
    return getattr(type(component), seam) is not getattr(Component, seam)
