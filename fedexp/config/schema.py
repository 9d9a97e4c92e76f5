"""What a configuration may contain. Free of torch, so that a wrong key or type is answered at once.

Run settings are declared in ``settings.py``. Every other part of a configuration names a ``_target_``, and the target's
own signature is its schema (``signatures.py``): hyper-parameters are declared in one place only, and so are their
ranges, by the types of ``fedexp.core.ranges``.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from fedexp.config import targets
from fedexp.config.settings import Settings
from fedexp.config.signatures import Declared, declared, defined_in, names_in, parsed, signature
from fedexp.config.suggest import nearest
from fedexp.config.targets import KEYED, KINDS, LISTS, kind_of
from fedexp.config.values import ANY, shown, wanted


def problems(config: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a plain (resolved) configuration, as far as it can be told without building it."""
    config = {"probe": {}, **config}  # runs had none before there were probes
    found = list(_check_fields(config, {**_hints(Settings), **dict.fromkeys(KINDS, ANY)}, ""))
    for group in KINDS:
        if group not in config:
            continue
        if not isinstance(config[group], Mapping):
            found.append(f"{group} must be a group of settings, not {shown(config[group])}")
        elif group in KEYED:
            for key, node in config[group].items():
                found += _check_target(node, f"{group}.{key}", group)
        else:
            found += _check_target(config[group], group, group)
    return found


def problems_of(thing: Any) -> Iterator[str]:
    """The fields of an object whose values its class does not allow, each sentence starting with the field's name."""
    hints = signature(f"{type(thing).__module__}.{type(thing).__qualname__}") or {}
    for name, hint in hints.items():
        if hasattr(thing, name) and (words := wanted(getattr(thing, name), hint)):
            yield f"{name} must be {words}, not {shown(getattr(thing, name))}"


# ---------------------------------------------------------------- checking
def _check_fields(values: Mapping[str, Any], hints: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        hint = hints.get(key)
        if hint is None:
            yield f"{where} is not a setting. {nearest(str(key), list(hints))}"
        elif isinstance(hint, type) and is_dataclass(hint):
            if isinstance(value, Mapping):
                yield from _check_fields(value, _hints(hint), where)
            else:
                yield f"{where} must be a group of settings, not {shown(value)}"
        elif words := wanted(value, hint):
            yield f"{where} must be {words}, not {shown(value)}"
    missing = [f"{path}.{k}" if path else k for k in hints if k not in values]
    if missing:
        yield f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"


@cache
def _hints(settings: Any) -> dict[str, Any]:
    return typing.get_type_hints(settings, include_extras=True)


def _check_target(node: Any, path: str, group: str) -> Iterator[str]:
    if not isinstance(node, Mapping):
        yield f"{path} must be a component with a _target_, not {shown(node)}"
    elif "_target_" not in node:
        yield f"{path} has no _target_; choose one of the files of its group"
    elif why := targets.refusal(node["_target_"], group) or _not_of_its_kind(node["_target_"], group):
        yield f"{path}._target_: {shown(node['_target_'])} {why}{'' if why.endswith('?') else '.'}"
    else:
        yield from _check_special(node, path, group)
        found = declared(node["_target_"])
        if found is not None:
            yield from _check_settings(node, path, found, kind_of(group).given)
        for name in (n for n in LISTS if n in node):
            yield from _check_list(node[name], f"{path}.{name}", name)


def _check_list(nodes: Any, path: str, group: str) -> Iterator[str]:
    if not isinstance(nodes, list | tuple):
        yield f"{path} must be a list of components with a _target_, not {shown(nodes)}"
        return
    for number, node in enumerate(nodes):
        yield from _check_target(node, f"{path}[{number}]", group)


def _check_special(node: Mapping[str, Any], path: str, group: str) -> Iterator[str]:
    """Names that begin with an underscore are Hydra's. Networks are made once the data are known, hence partial."""
    for key in (k for k in node if str(k).startswith("_") and k != "_target_"):
        if (group, key) != ("model", "_partial_"):
            yield f"{path}.{key} is not a setting: what is made of a _target_ cannot be changed. Leave it out."
        elif node[key] is not True:
            yield f"{path}.{key} must be true, not {shown(node[key])}"


def _check_settings(node: Mapping[str, Any], path: str, found: Declared, given: Sequence[str]) -> Iterator[str]:
    hints = {k: h for k, h in found.hints.items() if k not in given}
    for key, value in node.items():
        if str(key).startswith("_"):
            continue
        if key in given or (key not in hints and not found.open):
            yield f"{path}.{key} is not a setting of {node['_target_']}. {nearest(str(key), list(hints))}"
        elif words := wanted(value, hints.get(key, ANY)):
            yield f"{path}.{key} must be {words}, not {shown(value)}"
    yield from (f"{path}.{key} is missing" for key in hints if key in found.required and key not in node)


def _not_of_its_kind(target: str, group: str) -> str | None:
    """Why a target is not one of its group; None where that cannot be told from source text."""
    module, _, name = target.rpartition(".")
    path = targets.source(module)
    if path is None:
        return f"cannot be imported: there is no module {module}" if module.startswith("fedexp.") else None
    if (tree := parsed(path)) is None:
        return f"cannot be imported: {path} is not valid Python. Mend it"
    if name not in names_in(tree):
        known = defined_in(tree) or [n for n in names_in(tree) if not n.startswith("_")]  # a package may import names
        return f"is not there. {nearest(name, sorted(known)).rstrip('.')}"
    found, kind = declared(target), kind_of(group)
    if found is None or not found.methods.isdisjoint((kind.method, kind.theirs)):
        return "is only a description of such classes" if found and found.abstract else None
    if not found.is_class and not module.startswith("fedexp.") and module != kind.library:
        return None  # a function of the user's, which does not say what it returns
    return f"is not what {group} needs: it has no {kind.theirs if module == kind.library else kind.method}"
