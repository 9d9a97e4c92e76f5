"""What a configuration may contain. Free of torch, so that a wrong key or type is answered at once.

Run settings are declared here. Every other part of the configuration names a ``_target_``, and the target's own
signature, read from its source text, is its schema: hyper-parameters are declared in one place only.
"""

from __future__ import annotations

import ast
import importlib.util
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

ANY: Any = Any


@dataclass(frozen=True)
class Cohort:
    """Who takes part."""

    clients: int  # clients in the federation
    fraction: float  # share of them that takes part in a round (Q)
    seed: int | None  # of the draws of cohorts; None follows the run's seed


@dataclass(frozen=True)
class LocalSettings:
    """A client's training in one round."""

    epochs: float
    batch_size: int
    clip: float | None


@dataclass(frozen=True)
class MishapSettings:
    """Simulated trouble."""

    dropout: float
    stragglers: float
    slow: float


@dataclass(frozen=True)
class EverySettings:
    """How often, in rounds."""

    evaluate: int
    checkpoint: int


@dataclass(frozen=True)
class EvaluateSettings:
    """What is measured."""

    protocol: Literal["map", "fedgela", "fedrema"]
    window: int | None
    all_clients: bool | int | None
    finetune_epochs: float


@dataclass(frozen=True)
class Settings:
    """The top level of a configuration."""

    seed: int
    rounds: int
    cohort: Cohort
    local: LocalSettings
    mishaps: MishapSettings
    faults: Literal["raise", "skip"]
    limit: float | None
    weighting: Literal["uniform", "samples"]
    every: EverySettings
    evaluate: EvaluateSettings
    out: str
    name: str
    plan: bool
    force: bool
    keep: Literal["model", "all"]
    store: Literal["auto", "memory", "disk"]
    pool: Literal["train", "all"]
    algo: Any
    data: Any
    partition: Any
    model: Any
    optim: Any
    loop: Any
    executor: Any
    tracker: Any


def problems(config: Mapping[str, Any]) -> list[str]:
    """Every unknown key and wrong type in a plain (resolved) configuration."""
    found = list(_check_fields(config, typing.get_type_hints(Settings), ""))
    for group in ("data", "partition", "model", "optim", "loop", "executor", "tracker"):
        if isinstance(config.get(group), Mapping):
            found += _check_target(config[group], group)
    algo = config.get("algo")
    for key, component in (algo if isinstance(algo, Mapping) else {}).items():
        if isinstance(component, Mapping):
            found += _check_target(component, f"algo.{key}")
        else:
            found.append(f"algo.{key} must be a component with a _target_, not {component!r}")
    return found


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
        elif is_dataclass(hint):
            if isinstance(value, Mapping):
                yield from _check_fields(value, typing.get_type_hints(hint), where)
            else:
                yield f"{where} must be a group of settings, not {value!r}"
        elif not fits(value, hint):
            yield f"{where} must be {describe(hint)}, not {value!r}"
    missing = [f"{path}.{k}" if path else k for k in hints if k not in values]
    yield from (f"{m} is missing" for m in missing)


def _check_target(node: Mapping[str, Any], path: str) -> Iterator[str]:
    if "_target_" not in node:
        yield f"{path} has no _target_; choose one of the files of its group"
        return
    hints = signature(str(node["_target_"]))
    if hints is None:
        return
    for key, value in node.items():
        if key.startswith("_"):
            continue
        if key not in hints:
            yield f"{path}.{key} is not a setting of {node['_target_']}. {nearest(key, list(hints))}"
        elif not fits(value, hints[key]):
            yield f"{path}.{key} must be {describe(hints[key])}, not {value!r}"


def fits(value: Any, hint: Any) -> bool:
    """Whether a configuration value has a declared type. A whole number is a float too; a list is a tuple too."""
    if hint is ANY:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in args
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            return False
        inner = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(value)
        return len(inner) == len(value) and all(fits(v, h) for v, h in zip(value, inner, strict=True))
    if args:  # a union
        return any(fits(value, a) for a in args)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if hint is type(None) else isinstance(value, hint)


def describe(hint: Any) -> str:
    """A declared type in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (tuple, Sequence):
        return f"a list ({describe(args[0])} each)"
    if args:
        return " or ".join(describe(a) for a in args)
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", type(None): "null"}
    return words.get(hint, str(hint))


# ---------------------------------------------------------------- signatures from source text
@cache
def signature(target: str) -> dict[str, Any] | None:
    """The settable names of a class or function and their types; None if its source is not to be had."""
    module, _, name = target.rpartition(".")
    tree = _source(module)
    if tree is None:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class_fields(node, tree, module)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = [*node.args.args, *node.args.kwonlyargs]
            return {a.arg: _type(a.annotation, tree) for a in arguments}
    return None


@cache
def _source(module: str) -> ast.Module | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return ast.parse(Path(spec.origin).read_text())


def _class_fields(node: ast.ClassDef, tree: ast.Module, module: str) -> dict[str, Any] | None:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return {a.arg: _type(a.annotation, tree) for a in [*item.args.args[1:], *item.args.kwonlyargs]}
    found: dict[str, Any] = {}
    for base in (b for b in map(ast.unparse, node.bases) if b not in ("ABC", "Protocol")):  # those have no fields
        inherited = signature(_qualified(base, tree, module))
        if inherited is None:
            return None
        found |= inherited
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            text = ast.unparse(item.annotation)
            if not text.startswith("ClassVar"):
                found[item.target.id] = _type(item.annotation, tree)
    return found


def _qualified(name: str, tree: ast.Module, module: str) -> str:
    """The full name of something imported by ``from module import name``, or defined in the same file."""
    for item in tree.body:
        if isinstance(item, ast.ImportFrom) and any((a.asname or a.name) == name for a in item.names):
            return f"{item.module}.{name}"
    return f"{module}.{name}"


def _type(annotation: ast.expr | None, tree: ast.Module) -> Any:
    """An annotation as a type; anything where it is not made of builtins and choices."""
    if annotation is None:
        return ANY
    names: dict[str, Any] = {"Literal": Literal, "Sequence": Sequence}
    for item in tree.body:  # Name = Literal[...]
        if isinstance(item, ast.Assign) and ast.unparse(item.value).startswith("Literal["):
            names |= {ast.unparse(t): _evaluated(item.value, names) for t in item.targets}
    try:
        return _evaluated(annotation, names)
    except NameError:
        return ANY


def _evaluated(expression: ast.expr, names: dict[str, Any]) -> Any:
    return eval(ast.unparse(expression), dict(names))  # noqa: S307 - our own source text
