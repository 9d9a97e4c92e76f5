"""What a class or function can be given, and what it can do, read from its source text without importing it."""

from __future__ import annotations

import ast
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fedexp.config import targets
from fedexp.config.values import ANY
from fedexp.core import ranges

FIELDLESS = {"ABC", "Protocol"}  # bases of classes of which there are no objects
RANGES = {name: kind for name, kind in vars(ranges).items() if typing.get_origin(kind) is Annotated}
TYPE_NODES = (ast.Name, ast.Subscript, ast.Tuple, ast.Constant, ast.BinOp, ast.BitOr, ast.expr_context)


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
    module, _, name = _home(target).rpartition(".")
    path = targets.source(module)
    return _declared(path, module, name) if path else None


@cache
def _declared(path: Path, module: str, name: str) -> Declared | None:
    tree = parsed(path)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class(node, typing.cast(ast.Module, tree), module)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found = Declared(is_class=False, methods={ast.unparse(node.returns)} if node.returns else set())
            found.take(node.args, typing.cast(ast.Module, tree))
            return found
    return None


@cache
def names_in(tree: ast.Module) -> set[str]:
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


def defined_in(tree: ast.Module) -> list[str]:
    """The classes and functions of a module that a configuration may name."""
    found = (node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [name for name in found if not name.startswith("_")]


@cache
def parsed(path: Path) -> ast.Module | None:
    """A file's source text; None if it is not valid Python."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _class(node: ast.ClassDef, tree: ast.Module, module: str) -> Declared | None:
    bases = [ast.unparse(b.value if isinstance(b, ast.Subscript) else b) for b in node.bases]
    found = Declared(abstract=not FIELDLESS.isdisjoint(bases))
    for base in (b for b in bases if b not in (*FIELDLESS, "Generic", "object")):
        if (inherited := declared(f"{module}.{base}")) is None:
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


def _home(target: str) -> str:
    """The full name of a class or function where it is defined, and not only imported by ``from … import``."""
    seen: list[str] = []
    while target not in seen:
        seen.append(target)
        target = _imported(*target.rpartition(".")[::2]) or target
    return target


def _imported(module: str, name: str) -> str | None:
    """Where a module has a name from; None if it does not import it."""
    if (path := targets.source(module)) is None or (tree := parsed(path)) is None:
        return None
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for item in (item for item in tree.body if isinstance(item, ast.ImportFrom)):
        around = package[: len(package) - item.level + 1] if item.level else []
        for alias in (a for a in item.names if (a.asname or a.name) == name):
            return ".".join([*around, *([item.module] if item.module else []), alias.name])
    return None


def _type(annotation: ast.expr | None, tree: ast.Module) -> Any:
    """An annotation as a type; anything where it is not made of builtins, ranges and choices."""
    if annotation is None:
        return ANY
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):  # in quotes
        return _type(_expression(annotation.value), tree)
    names: dict[str, Any] = {**RANGES, "Literal": Literal, "Sequence": Sequence, "Tensor": float}  # of one number
    for item in tree.body:  # Name = Literal[...]
        if isinstance(item, ast.Assign) and ast.unparse(item.value).startswith("Literal["):
            names |= {ast.unparse(t): _evaluated(item.value, names) for t in item.targets}
    try:
        return _evaluated(annotation, names)
    except (NameError, TypeError):
        return ANY


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _evaluated(expression: ast.expr, names: dict[str, Any]) -> Any:
    if not all(isinstance(node, TYPE_NODES) for node in ast.walk(expression)):
        raise TypeError(f"{ast.unparse(expression)} does more than name types.")
    return eval(ast.unparse(expression), dict(names))  # noqa: S307 - names and brackets: nothing is called
