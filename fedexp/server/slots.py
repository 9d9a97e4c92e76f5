"""The server's slots and mailboxes while a round changes them. Every new value is checked against the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fedexp.core.algorithm import Algorithm
from fedexp.core.state import ServerState, Tree, snapshot
from fedexp.core.views import Slots
from fedexp.errors import PlanError


class ServerSlots:
    """Copies of a state's slots and mailboxes, as components see them and as the next state has them."""

    def __init__(self, algorithm: Algorithm, state: ServerState) -> None:
        self._algorithm, self._model = algorithm, state.model
        self.slots = dict(state.slots)
        self.mailboxes = {n: dict(box) for n, box in state.mailboxes.items()}
        self._shown: dict[str, dict[str, Any]] = {k: {} for k in algorithm.components}
        everything: dict[str, Any] = {**algorithm.constants, **self.slots, **self.mailboxes}
        for name, value in everything.items():
            self._show(name, value)  # a mailbox is shown whole, by client id

    @property
    def views(self) -> dict[str, Slots]:
        """The slots by component and name, to be read only; they follow what is stored."""
        return {k: MappingProxyType(shown) for k, shown in self._shown.items()}

    def store(self, key: str, slot: str, value: Tree | dict[int, Tree]) -> None:
        """Sets a slot, or the entries of some clients in a mailbox.

        Raises:
            PlanError: If it is not declared, or has other names or shapes than the value it begins with.
        """
        name = f"{key}.{slot}"
        if name in self.slots:
            tree = settled(value, self.slots[name], f"the new value of slot {name!r}")
            self.slots[name] = snapshot(tree)  # the component may go on to change its own
            self._show(name, self.slots[name])
        elif name in self.mailboxes:
            self._post(name, value)
        else:
            known = [n.removeprefix(f"{key}.") for n in (*self.slots, *self.mailboxes) if n.startswith(f"{key}.")]
            raise PlanError(
                f"component {key!r} sets {slot!r}, which is not one of its server slots and mailboxes "
                f"({', '.join(known) or 'none'}). Declare it in slots()."
            )

    def _post(self, name: str, mail: Any) -> None:
        box = self.mailboxes[name]
        n_clients = self._algorithm.facts.n_clients
        if strangers := [c for c in mail if c not in range(n_clients)]:
            raise PlanError(f"mailbox {name!r} is by client id, 0 to {n_clients - 1}, and {strangers[0]!r} is none.")
        like = next(iter(box.values()), None)
        if like is None:
            like = self._algorithm.slots[name].init(self._algorithm.init(name, self._model))
        box.update({c: snapshot(settled(tree, like, f"the new mail of {name!r}")) for c, tree in mail.items()})

    def _show(self, name: str, value: Any) -> None:
        key, _, slot = name.partition(".")
        self._shown[key][slot] = value


def settled(tree: Any, like: Mapping[str, Tensor], what: str) -> Tree:
    """A component's tensors on the CPU and without gradient.

    Raises:
        PlanError: If they have other names or shapes than those of ``like``.
    """
    if not isinstance(tree, Mapping) or not all(isinstance(v, Tensor) for v in tree.values()):
        raise PlanError(f"{what} must be a dictionary of tensors by name, not {tree!r:.80}.")
    if lost := [n for n in like if n not in tree]:
        raise PlanError(f"{what} has no {lost[0]!r}. It must have all names that it began with.")
    for name, value in tree.items():
        if name not in like:
            raise PlanError(f"{what} has {name!r}, which does not belong to it. It began with {_some(like)}.")
        if value.shape != like[name].shape:
            raise PlanError(
                f"{what} has {name!r} of the shape {list(value.shape)}, which must stay {list(like[name].shape)}."
            )
    return {n: v.detach().cpu() for n, v in tree.items()}


def _some(names: Mapping[str, Tensor], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(list(names)[:most]) or "nothing") + more
