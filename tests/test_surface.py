"""The public surface: every name is documented, and the promised names are there."""

from __future__ import annotations

import inspect
import operator
import re
import subprocess
import sys
from typing import Any

import pytest

import weft as wf
import weft.core
import weft.core.sharding
import weft.ops
from weft import nn
from weft.core.common.slots import FUNCTIONS, OPS

PUBLIC = sorted(
    name for name in dir(wf) if not name.startswith("_") and not inspect.ismodule(getattr(wf, name))
)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring(name: str) -> None:
    value = getattr(wf, name)
    if callable(value):
        assert inspect.getdoc(value), f"wf.{name} says nothing of itself"


@pytest.mark.parametrize(
    "space",
    [wf.linalg, wf.fft, wf.random, wf.polynomial, wf.nn.init, wf.optim.schedules],
    ids=lambda space: space.__name__,
)
def test_a_namespace_lists_what_it_offers(space: Any) -> None:
    assert dir(space) == sorted(space.__all__)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_registered_function_is_documented(name: str) -> None:
    assert inspect.getdoc(FUNCTIONS[name])


def test_a_method_says_which_function_it_is() -> None:
    for name in dir(wf.Tensor):
        text = inspect.getdoc(getattr(wf.Tensor, name)) or ""
        found = re.match(r"Method form of `wf\.([\w.]+)\(", text)
        if found:
            function = operator.attrgetter(found[1])(wf)
            assert function is FUNCTIONS[name], name


@pytest.mark.parametrize("name", sorted(set(dir(nn)) & set(nn.__all__)))
def test_a_layer_shows_the_parameters_it_is_made_with(name: str) -> None:
    kind = getattr(nn, name)
    if inspect.isclass(kind) and issubclass(kind, nn.Module) and kind is not nn.Module:
        kinds = {p.kind for p in inspect.signature(kind).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_a_model_shows_the_parameters_it_is_called_with() -> None:
    layer = nn.Linear(2, 3, key=wf.random.key(0))
    assert list(inspect.signature(layer).parameters) == ["x"]
    assert list(inspect.signature(nn.Linear).parameters)[:2] == ["in_features", "out_features"]


def _names(text: str) -> list[str]:
    return text.split()


@pytest.mark.promise("S2.16")
@pytest.mark.parametrize(
    "name",
    _names(
        "Operation UnaryOperation BinaryOperation LogicalAxisOperation ReduceOperation"
        " LogicalShapeOperation CollectiveOperation execute_operation"
    ),
)
def test_op_classes_and_the_dispatcher_are_exported(name: str) -> None:
    assert hasattr(weft.ops, name)


@pytest.mark.promise("S2.19")
@pytest.mark.parametrize("name", _names("add mul sub div matmul"))
def test_binary_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.20")
@pytest.mark.parametrize("name", _names("relu sigmoid tanh exp neg softmax"))
def test_unary_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.21")
@pytest.mark.parametrize("name", _names("reduce_sum mean"))
def test_reduction_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.22")
@pytest.mark.parametrize("name", _names("equal not_equal greater greater_equal less less_equal"))
def test_comparison_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.23")
@pytest.mark.parametrize("name", _names("full arange constant zeros ones uniform gaussian normal"))
def test_creation_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.24")
@pytest.mark.parametrize("name", _names("where cond while_loop scan"))
def test_control_flow_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.25")
@pytest.mark.parametrize("name", _names("split chunk unbind minmax"))
def test_multiple_output_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.18")
@pytest.mark.parametrize(
    "name", _names("reshape transpose squeeze unsqueeze broadcast_to gather scatter")
)
def test_view_names(name: str) -> None:
    assert callable(getattr(wf, name))


@pytest.mark.promise("S2.1")
def test_every_op_is_a_stateless_singleton_of_the_hierarchy() -> None:
    for name, op in OPS.items():
        assert isinstance(op, weft.ops.Operation)
        assert op.name == name
        state = set(vars(op)) - {"name", "__name__", "__doc__"}
        assert not state, f"{name} keeps {state}"
        with pytest.raises(TypeError, match="defined twice"):
            type(op)()


@pytest.mark.promise("S2.2")
def test_the_hierarchy_is_as_documented() -> None:
    ops = weft.ops
    assert issubclass(ops.ReduceOperation, ops.LogicalAxisOperation)
    assert issubclass(ops.LogicalShapeOperation, ops.LogicalAxisOperation)
    for name in (
        "UnaryOperation",
        "BinaryOperation",
        "LogicalAxisOperation",
        "CollectiveOperation",
    ):
        assert issubclass(getattr(ops, name), ops.Operation)
    assert isinstance(OPS["sin"], ops.UnaryOperation)
    assert isinstance(OPS["add"], ops.BinaryOperation)
    assert isinstance(OPS["reduce_sum"], ops.ReduceOperation)
    assert isinstance(OPS["reshape"], ops.LogicalShapeOperation)


@pytest.mark.promise("S2.3")
def test_an_op_owns_logic_physics_and_cost() -> None:
    kind = wf.ones((4, 4)).type
    matmul = OPS["matmul"]
    assert matmul.infer(kind, kind) == kind
    assert str(matmul.sharding_rule(kind, kind)) == "m k, k n -> m n"
    assert matmul.cost(kind, kind).flops == 2 * 4**3


@pytest.mark.promise("S2.4")
@pytest.mark.parametrize(
    "method", _names("eval sharding_rule vjp jvp batch cost _transform_shard_kwargs")
)
def test_every_op_has_the_methods_of_an_op(method: str) -> None:
    assert all(callable(getattr(op, method)) for op in OPS.values())


@pytest.mark.promise("S4.28")
def test_a_new_primitive_is_one_definition() -> None:
    code = """
import numpy as np, weft as wf
from weft.ops.families import UnaryOperation
class Cubed(UnaryOperation):
    'x to the third.'
    def eval(self, x): return x ** 3
    def body(self, s, x): return s.mul(x, s.mul(x, x))
    def derivative(self, x, y): return 3 * x * x
cubed = Cubed()
x = wf.tensor([1.0, 2.0])
assert cubed(x).tolist() == [1.0, 8.0]
assert wf.grad(lambda x: cubed(x).sum())(x).tolist() == [3.0, 12.0]
assert wf.jvp(cubed, x, x)[1].tolist() == [3.0, 24.0]
assert wf.vmap(cubed)(x).tolist() == [1.0, 8.0]
assert str(cubed.sharding_rule(x.type)) == 'b0 -> b0'
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_weft_loads_no_heavy_library() -> None:
    code = (
        "import sys, weft; bad = {'jax', 'torch', 'scipy.linalg', 'scipy.special', 'scipy.fft',"
        " 'llvmlite', 'mpi4py'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


X, IDS, MASK = wf.ones((3, 4)), wf.tensor([0, 0, 1]), wf.ones((3, 4)) > 0


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("one_hot", (IDS,), {"num_classes": 3}),
        ("pad", (X,), {"pad_width": 1}),
        ("segment_sum", (X,), {"segment_ids": IDS, "num_segments": 2}),
        ("dropout", (X,), {"rate": 0.5, "key": wf.random.key(0)}),
        ("quantile", (X,), {"q": 0.5}),
        ("percentile", (X,), {"q": 50}),
        ("digitize", (X,), {"bins": [0.5, 2.0]}),
        ("interp", (X,), {"xp": [0.0, 2.0], "fp": [1.0, 3.0]}),
        ("sliding_window_view", (X,), {"window_shape": 2, "axis": 0}),
        ("split", (X,), {"indices_or_sections": 3}),
        ("insert", (X,), {"obj": 0, "values": 2.0, "axis": 0}),
        ("delete", (X,), {"obj": 0, "axis": 0}),
        ("append", (X,), {"values": X, "axis": 0}),
        ("masked_fill", (X,), {"mask": MASK, "value": 0.0}),
        ("chunk", (X,), {"chunks": 2}),
        ("lerp", (X, X), {"weight": 0.5}),
        ("cross_entropy", (X,), {"target": IDS}),
        ("mse_loss", (X,), {"target": X}),
        ("while_loop", (), {"cond_fun": lambda s: s < 3, "body_fun": lambda s: s + 1, "init": 0}),
        ("fori_loop", (0, 3), {"body_fun": lambda i, s: s + i, "init": 0}),
    ],
)
def test_what_peers_take_by_name_is_taken_by_name(name, args, named) -> None:
    function = getattr(wf, name)
    mixed = [p.name for p in inspect.signature(function).parameters.values()][len(args) :]
    values = [named[n] for n in mixed[: len(named)] if n in named]
    rest = {n: v for n, v in named.items() if n not in mixed[: len(values)]}
    want = wf.tree_leaves(function(*args, *values, **rest))
    for x, y in zip(wf.tree_leaves(function(*args, **named)), want, strict=True):
        assert x.tolist() == y.tolist()
