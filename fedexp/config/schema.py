"""What a configuration may contain. Free of torch, so that a wrong key or type is answered at once.

Run settings are declared here. Every other part of the configuration names a ``_target_``, and the target's own
signature, read from its source text, is its schema: hyper-parameters are declared in one place only, and so are their
ranges, by the types of ``fedexp.core.ranges``.
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fedexp.config import targets
from fedexp.config.targets import KINDS
from fedexp.core import ranges
from fedexp.core.ranges import ALWAYS, Count, CountOr0, Epochs, FolderName, Positive, Seconds, Share, ShareAbove0, Text

ANY: Any = Any
FIELDLESS = {"ABC", "Protocol"}  # bases of classes of which there are no objects
LONGEST = 120  # letters of a wrong value that are shown


@dataclass(frozen=True)
class Cohort:
    """Who takes part."""

    clients: Count  # clients in the federation
    fraction: ShareAbove0  # share of them that takes part in a round (Q)
    seed: int | None  # of the draws of cohorts; None follows the run's seed


@dataclass(frozen=True)
class LocalSettings:
    """A client's training in one round."""

    epochs: Epochs
    batch_size: Count
    clip: Positive | None


@dataclass(frozen=True)
class MishapSettings:
    """Simulated trouble."""

    dropout: Share
    stragglers: Share
    slow: Share


@dataclass(frozen=True)
class EverySettings:
    """How often, in rounds."""

    evaluate: Count
    checkpoint: Count


@dataclass(frozen=True)
class EvaluateSettings:
    """What is measured."""

    protocol: Literal["map", "fedgela", "fedrema"]
    window: Count | None
    all_clients: bool | Count | None
    finetune_epochs: Epochs


@dataclass(frozen=True)
class Settings:
    """The top level of a configuration."""

    seed: int
    rounds: Count
    cohort: Cohort
    local: LocalSettings
    mishaps: MishapSettings
    faults: Literal["raise", "skip"]
    limit: Seconds | None
    weighting: Literal["uniform", "samples"]
    every: EverySettings
    evaluate: EvaluateSettings
    out: Text
    name: FolderName
    plan: bool
    force: bool
    keep: Literal["model", "all"]
    store: Literal["auto", "memory", "disk"]
    pool: Literal["train", "all"]
    public: CountOr0
    centralized: bool
    algo: Any
    data: Any
    partition: Any
    model: Any
    optim: Any
    loop: Any
    executor: Any
    tracker: Any


def problems(config: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a plain (resolved) configuration, as far as it can be told without building it."""
    found = list(_check_fields(config, _hints(Settings), ""))
    for group in KINDS:
        if group not in config:
            continue
        if not isinstance(config[group], Mapping):
            found.append(f"{group} must be a group of settings, not {_shown(config[group])}")
        elif group == "algo":
            for key, component in config[group].items():
                found += _check_target(component, f"algo.{key}", group)
        else:
            found += _check_target(config[group], group, group)
    return found


def problems_of(thing: Any) -> Iterator[str]:
    """The fields of an object whose values its class does not allow, each sentence starting with the field's name."""
    hints = signature(f"{type(thing).__module__}.{type(thing).__qualname__}") or {}
    for name, hint in hints.items():
        if hasattr(thing, name) and (words := wanted(getattr(thing, name), hint)):
            yield f"{name} must be {words}, not {_shown(getattr(thing, name))}"


def nearest(word: str, words: Sequence[str]) -> str:
    """A hint at the words that are closest to a wrong one."""
    near = get_close_matches(word, words, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(sorted(words)) or 'none'}."


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
                yield f"{where} must be a group of settings, not {_shown(value)}"
        elif words := wanted(value, hint):
            yield f"{where} must be {words}, not {_shown(value)}"
    missing = [f"{path}.{k}" if path else k for k in hints if k not in values]
    if missing:
        yield f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"


@cache
def _hints(settings: Any) -> dict[str, Any]:
    return typing.get_type_hints(settings, include_extras=True)


def _check_target(node: Any, path: str, group: str) -> Iterator[str]:
    if not isinstance(node, Mapping):
        yield f"{path} must be a component with a _target_, not {_shown(node)}"
    elif "_target_" not in node:
        yield f"{path} has no _target_; choose one of the files of its group"
    elif why := targets.refusal(node["_target_"], group) or _not_of_its_kind(node["_target_"], group):
        yield f"{path}._target_: {_shown(node['_target_'])} {why}{'' if why.endswith('?') else '.'}"
    else:
        yield from _check_special(node, path, group)
        found = declared(node["_target_"])
        if found is not None:
            yield from _check_settings(node, path, found, KINDS[group].given)


def _check_special(node: Mapping[str, Any], path: str, group: str) -> Iterator[str]:
    """Names that begin with an underscore are Hydra's. Networks are made once the data are known, hence partial."""
    for key in (k for k in node if str(k).startswith("_") and k != "_target_"):
        if (group, key) != ("model", "_partial_"):
            yield f"{path}.{key} is not a setting: what is made of a _target_ cannot be changed. Leave it out."
        elif node[key] is not True:
            yield f"{path}.{key} must be true, not {_shown(node[key])}"


def _check_settings(node: Mapping[str, Any], path: str, found: Declared, given: Sequence[str]) -> Iterator[str]:
    hints = {k: h for k, h in found.hints.items() if k not in given}
    for key, value in node.items():
        if str(key).startswith("_"):
            continue
        if key in given or (key not in hints and not found.open):
            yield f"{path}.{key} is not a setting of {node['_target_']}. {nearest(str(key), list(hints))}"
        elif words := wanted(value, hints.get(key, ANY)):
            yield f"{path}.{key} must be {words}, not {_shown(value)}"
    yield from (f"{path}.{key} is missing" for key in hints if key in found.required and key not in node)


def _not_of_its_kind(target: str, group: str) -> str | None:
    """Why a target is not one of its group; None where that cannot be told from source text."""
    module, _, name = target.rpartition(".")
    path = targets.source(module)
    if path is None:
        return f"cannot be imported: there is no module {module}" if module.startswith("fedexp.") else None
    if (tree := _source(path)) is None:
        return f"cannot be imported: {path} is not valid Python. Mend it"
    if name not in _names(tree):
        return f"is not there. {nearest(name, sorted(_defined(tree))).rstrip('.')}"
    found, method = declared(target), KINDS[group].method
    if found is None or method in found.methods:
        return "is only a description of such classes" if found and found.abstract else None
    return f"is not what {group} needs: it has no {method}" if found.is_class or module.startswith("fedexp.") else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def fits(value: Any, hint: Any) -> bool:
    """Whether a configuration value is what is declared. A whole number is a float too; a list is a tuple too."""
    return wanted(value, hint) is None


def wanted(value: Any, hint: Any) -> str | None:
    """What a value should be instead, in words; None if it is right."""
    if hint is ANY:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return wanted(value, args[0]) or (None if args[1].holds(value) else args[1].words)
    if origin is Literal:
        return None if value in args else describe(hint)
    if origin in (tuple, Sequence):
        return _wanted_list(value, hint)
    if args:  # a union
        each = [wanted(value, a) for a in args]
        return None if None in each else " or ".join(filter(None, each))
    if not _is(value, hint):
        return describe(hint)
    always = ALWAYS.get(hint)
    return None if always is None or always.holds(value) else always.words


def _wanted_list(value: Any, hint: Any) -> str | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not isinstance(value, list | tuple):
        return describe(hint)
    inner = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(value)
    if len(inner) != len(value):
        return describe(hint)
    words = next(filter(None, (wanted(v, h) for v, h in zip(value, inner, strict=True))), None)
    return words and f"a list ({words} each)"


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def describe(hint: Any) -> str:
    """A declared type in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return describe(args[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (tuple, Sequence):
        return f"a list ({describe(args[0])} each)"
    if args:
        return " or ".join(describe(a) for a in args)
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", type(None): "null"}
    return words.get(hint, str(hint))


# ---------------------------------------------------------------- signatures from source text
@dataclass
class Declared:
    """What source text says of a class or function: what it takes, and what it can do."""

    hints: dict[str, Any] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)  # of a function: what it returns
    is_class: bool = True
    abstract: bool = False
    open: bool = False  # to any other name

    def inherit(self, base: Declared) -> None:
        """Takes over what a base class has."""
        self.hints |= base.hints
        self.required |= base.required
        self.methods |= base.methods
        self.open |= base.open

    def take(self, arguments: ast.arguments, tree: ast.Module, *, skip: int = 0) -> None:
        """Takes over a function's arguments, in place of those of its bases."""
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        pairs = [*zip(positional, [*defaults, *arguments.defaults], strict=True)][skip:]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        self.hints = {a.arg: _type(a.annotation, tree) for a, _ in pairs}
        self.required = {a.arg for a, default in pairs if default is None}
        self.open = arguments.kwarg is not None


def signature(target: str) -> dict[str, Any] | None:
    """The settable names of a class or function and their types; None if its source is not to be had."""
    found = declared(target)
    return found.hints if found else None


def declared(target: str) -> Declared | None:
    """What the source text says of a class or function; None if it is not to be had."""
    module, _, name = target.rpartition(".")
    path = targets.source(module)
    return _declared(path, module, name) if path else None


@cache
def _declared(path: Path, module: str, name: str) -> Declared | None:
    tree = _source(path)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class(node, typing.cast(ast.Module, tree), module)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found = Declared(is_class=False, methods={ast.unparse(node.returns)} if node.returns else set())
            found.take(node.args, typing.cast(ast.Module, tree))
            return found
    return None


@cache
def _names(tree: ast.Module) -> set[str]:
    """Everything that a module's source text defines or imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _defined(tree: ast.Module) -> list[str]:
    """The classes and functions of a module that a configuration may name."""
    found = (node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [name for name in found if not name.startswith("_")]


@cache
def _source(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _class(node: ast.ClassDef, tree: ast.Module, module: str) -> Declared | None:
    bases = [ast.unparse(b.value if isinstance(b, ast.Subscript) else b) for b in node.bases]
    found = Declared(abstract=not FIELDLESS.isdisjoint(bases))
    for base in (b for b in bases if b not in (*FIELDLESS, "Generic", "object")):
        if (inherited := declared(_qualified(base, tree, module))) is None:
            return None
        found.inherit(inherited)
    functions = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    found.methods |= functions.keys()
    if "__init__" in functions:
        found.take(functions["__init__"].args, tree, skip=1)
    elif "__init__" not in found.methods:
        _take_fields(found, node, tree)
    return found


def _take_fields(found: Declared, node: ast.ClassDef, tree: ast.Module) -> None:
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if not ast.unparse(item.annotation).startswith("ClassVar"):
            found.hints[item.target.id] = _type(item.annotation, tree)
            (found.required.add if item.value is None else found.required.discard)(item.target.id)


def _qualified(name: str, tree: ast.Module, module: str) -> str:
    """The full name of something imported by ``from module import name``, or defined in the same file."""
    for item in tree.body:
        if isinstance(item, ast.ImportFrom) and any((a.asname or a.name) == name for a in item.names):
            return f"{item.module}.{name}"
    return f"{module}.{name}"


def _type(annotation: ast.expr | None, tree: ast.Module) -> Any:
    """An annotation as a type; anything where it is not made of builtins, ranges and choices."""
    if annotation is None:
        return ANY
    names: dict[str, Any] = {**RANGES, "Literal": Literal, "Sequence": Sequence}
    for item in tree.body:  # Name = Literal[...]
        if isinstance(item, ast.Assign) and ast.unparse(item.value).startswith("Literal["):
            names |= {ast.unparse(t): _evaluated(item.value, names) for t in item.targets}
    try:
        return _evaluated(annotation, names)
    except (NameError, TypeError):
        return ANY


def _evaluated(expression: ast.expr, names: dict[str, Any]) -> Any:
    if not all(isinstance(node, TYPE_NODES) for node in ast.walk(expression)):
        raise TypeError(f"{ast.unparse(expression)} does more than name types.")
    return eval(ast.unparse(expression), dict(names))  # noqa: S307 - names and brackets: nothing is called


RANGES = {name: kind for name, kind in vars(ranges).items() if typing.get_origin(kind) is Annotated}
TYPE_NODES = (ast.Name, ast.Subscript, ast.Tuple, ast.Constant, ast.BinOp, ast.BitOr, ast.expr_context)
