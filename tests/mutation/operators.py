"""How a fault is made: operators by the type of the node that they change.

mutmut's, but for those whose mutants mypy --strict refuses (`config.toml` names them), and two of our own: a
condition is negated, a call for its effect is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import libcst as cst
from mutmut.mutation import mutators

Operator = Callable[[Any], Iterable[cst.CSTNode]]


def string(node: cst.BaseString) -> Iterable[cst.CSTNode]:
    """The string with something before and after it. The other two ways of mutmut tell little more."""
    return list(mutators.operator_string(node))[:1]


def condition(node: cst.If | cst.While | cst.CompIf) -> Iterable[cst.CSTNode]:
    test = node.test
    if not test.lpar:
        test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


def call(node: cst.Expr) -> Iterable[cst.CSTNode]:
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


OPERATORS: tuple[tuple[type[cst.CSTNode] | tuple[type[cst.CSTNode], ...], str, Operator], ...] = (
    (cst.BaseNumber, "number", mutators.operator_number),
    (cst.SimpleString, "string", string),
    (cst.Name, "name", mutators.operator_name),
    (cst.AugAssign, "augmented assignment", mutators.operator_augmented_assignment),
    (cst.UnaryOperation, "unary operator", mutators.operator_remove_unary_ops),
    (cst.Call, "string method", mutators.operator_symmetric_string_methods_swap),
    (cst.Call, "string method", mutators.operator_unsymmetrical_string_methods_swap),
    (cst.CSTNode, "keyword", mutators.operator_keywords),
    (cst.CSTNode, "operator", mutators.operator_swap_op),
    (cst.Match, "case", mutators.operator_match),
    (cst.IfExp, "conditional", mutators.operator_if_exp),
    ((cst.If, cst.While, cst.CompIf), "condition", condition),
    (cst.Expr, "call", call),
)
