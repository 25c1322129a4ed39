from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.common.factors import Factors
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.errors import (
    ArgumentError,
    CastError,
    ConversionError,
    DTypeError,
    MissingRuleError,
    ShapeError,
    TreeError,
)
from weft.ops.base import Operation, call

F8 = np.dtype("float64")


class Cube:
    """A kernel with rules of its own, and a note of the shapes it was called with."""

    def __init__(self, vectorized=False, rules=True, **options):
        self.shapes = []
        self.options = {"vectorized": vectorized, **options}
        if rules:
            self.options |= {"vjp": self.pull, "jvp": self.push}

    def kernel(self, x):
        self.shapes.append(x.shape)
        return x**3

    @staticmethod
    def pull(primals, result, cotangent):
        return (3 * primals[0] ** 2 * cotangent,)

    @staticmethod
    def push(primals, tangents, result):
        return 3 * primals[0] ** 2 * tangents[0]

    def __call__(self, x):
        kind = TensorType(x.shape, F8)
        return wf.call_custom_kernel(self.kernel, x, result_type=kind, **self.options)


def points(*shape):
    return wf.asarray(np.linspace(0.5, 2.0, int(np.prod(shape))).reshape(shape))


@pytest.mark.promise("S2.26")
def test_a_custom_kernel_runs_on_arrays_and_gives_tensors() -> None:
    x = points(3)
    cube = Cube()
    np.testing.assert_array_equal(cube(x).numpy(), x.numpy() ** 3)
    assert cube.shapes == [(3,)]


@pytest.mark.promise("S2.26")
@pytest.mark.parametrize("vectorized", [False, True])
def test_under_vmap_it_is_called_for_each_row_or_once_for_all(vectorized) -> None:
    x = points(2, 4, 3)
    cube = Cube(vectorized)
    got = wf.vmap(wf.vmap(cube, in_axes=1, out_axes=1))(x)
    np.testing.assert_array_equal(got.numpy(), x.numpy() ** 3)
    assert cube.shapes == ([(2, 3, 4)] if vectorized else [(4,)] * 6)


@pytest.mark.parametrize("vectorized", [False, True])
def test_an_operand_that_is_not_mapped_is_repeated(vectorized) -> None:
    def outer(x, y):
        return x[..., :, None] * y[..., None, :]

    def run(x, y):
        kind = ((3, 2), "float64")
        return wf.call_custom_kernel(outer, x, y, result_type=kind, vectorized=vectorized)

    x, y = points(4, 3), points(2)
    got = wf.vmap(run, in_axes=(0, None))(x, y)
    np.testing.assert_array_equal(got.numpy(), outer(x.numpy(), np.tile(y.numpy(), (4, 1))))


@pytest.mark.promise("S2.26")
@pytest.mark.parametrize("vectorized", [False, True])
def test_its_own_rules_serve_every_order_and_composition(vectorized) -> None:
    cube, x = Cube(vectorized), points(4)
    total = lambda x: wf.sum(cube(x))  # noqa: E731
    expected = 3 * x.numpy() ** 2
    np.testing.assert_allclose(wf.grad(total)(x).numpy(), expected)
    np.testing.assert_allclose(wf.jvp(cube, (x,), (x,))[1].numpy(), 3 * x.numpy() ** 3)
    second = wf.grad(lambda x: wf.sum(wf.grad(total)(x)))
    np.testing.assert_allclose(second(x).numpy(), 6 * x.numpy())
    np.testing.assert_allclose(wf.vmap(wf.grad(cube))(x).numpy(), expected)
    np.testing.assert_allclose(wf.grad(lambda x: wf.sum(wf.vmap(cube)(x)))(x).numpy(), expected)
    np.testing.assert_allclose(wf.jvp(wf.vmap(cube), (x,), (x,))[1].numpy(), 3 * x.numpy() ** 3)
    twice = points(2, 4)
    np.testing.assert_allclose(
        wf.grad(lambda x: wf.sum(wf.vmap(wf.vmap(cube))(x)))(twice).numpy(),
        3 * twice.numpy() ** 2,
    )


def test_its_rules_see_the_shapes_of_one_row_at_every_depth_of_vmap() -> None:
    def run(x):
        return wf.call_custom_kernel(
            lambda a: np.sum(a * a),
            x,
            result_type=((), "float64"),
            vjp=lambda primals, result, ct: (2 * primals[0] * ct,),
            jvp=lambda primals, tangents, result: wf.sum(2 * primals[0] * tangents[0]),
        )

    x = points(2, 4, 3)
    mapped = wf.vmap(wf.vmap(run))
    gradient = wf.grad(lambda x: wf.sum(mapped(x)))(x)
    np.testing.assert_allclose(gradient.numpy(), 2 * x.numpy())
    _, slope = wf.jvp(mapped, (x,), (x,))
    np.testing.assert_allclose(slope.numpy(), 2 * (x.numpy() ** 2).sum(-1))


@pytest.mark.promise("S2.26")
def test_it_is_recorded_in_traces_and_runs_in_loops() -> None:
    cube, x = Cube(), points(3)
    traced = wf.trace(cube, x)
    assert cube.shapes == []
    np.testing.assert_array_equal(traced.replay(x)[0].numpy(), x.numpy() ** 3)
    assert "<kernel>" in str(traced)
    total, _ = wf.scan(lambda c, v: (c + cube(v), None), np.float64(0), x)
    assert total.item() == pytest.approx((x.numpy() ** 3).sum())
    loss = lambda x: wf.scan(lambda c, v: (c + cube(v), None), np.float64(0), x)[0]  # noqa: E731
    np.testing.assert_allclose(wf.grad(loss)(x).numpy(), 3 * x.numpy() ** 2)


def test_arguments_and_results_are_trees_and_none_is_a_zero_cotangent() -> None:
    def kernel(tree, n):
        return {"sum": tree["a"] + tree["b"], "n": np.asarray(n + 1)}

    def pull(primals, result, cotangent):
        tree, _ = primals
        assert result["sum"].shape == tree["a"].shape
        return {"a": cotangent["sum"], "b": None}, None

    def run(tree):
        kinds = {"sum": TensorType((2,), F8), "n": TensorType((), np.dtype("int64"))}
        return wf.call_custom_kernel(kernel, tree, 3, result_type=kinds, vjp=pull)

    tree = {"a": points(2), "b": points(2)}
    out = run(tree)
    assert out["n"].item() == 4
    np.testing.assert_array_equal(out["sum"].numpy(), 2 * points(2).numpy())
    gradient = wf.grad(lambda t: wf.sum(run(t)["sum"]))(tree)
    assert gradient["a"].tolist() == [1.0, 1.0]
    assert gradient["b"].tolist() == [0.0, 0.0]
    rows = {"a": points(3, 2), "b": points(3, 2)}
    mapped = wf.grad(lambda t: wf.sum(wf.vmap(run)(t)["sum"]))(rows)
    assert mapped["a"].tolist() == [[1.0, 1.0]] * 3
    assert mapped["b"].tolist() == [[0.0, 0.0]] * 3


def test_a_rule_that_was_not_given_is_missing_and_says_how_to_give_it() -> None:
    cube = Cube(rules=False)
    with pytest.raises(
        MissingRuleError, match=r"kernel: no vjp rule: .*given no vjp\nhint: pass vjp="
    ):
        wf.grad(lambda x: wf.sum(cube(x)))(points(3))
    with pytest.raises(MissingRuleError, match="kernel: no jvp rule"):
        wf.jvp(cube, (points(3),), (points(3),))


def test_a_rule_that_returns_the_wrong_thing_is_told() -> None:
    x = points(3)

    def run(pull):
        kind = TensorType((3,), F8)
        return wf.grad(
            lambda x: wf.sum(wf.call_custom_kernel(np.sin, x, result_type=kind, vjp=pull))
        )(x)

    with pytest.raises(TreeError, match="sin: vjp returned a tree that does not match"):
        run(lambda primals, result, cotangent: cotangent)
    with pytest.raises(TreeError, match="does not match the arguments"):
        run(lambda primals, result, cotangent: ((cotangent, cotangent),))
    with pytest.raises(ShapeError, match=r"sin: vjp: argument leaf 0: cotangent float64\[\]"):
        run(lambda primals, result, cotangent: (wf.sum(cotangent),))


def test_what_a_kernel_returns_is_checked() -> None:
    def run(kernel, kind=((2,), "float64"), **options):
        found = wf.call_custom_kernel(kernel, points(2), result_type=kind, name="mine", **options)
        return [x.numpy() for x in wf.tree_leaves(found)]

    with pytest.raises(
        ShapeError, match=r"mine: result: result_type says shape \(2,\), got \(1,\)"
    ):
        run(lambda x: x[:1])
    with pytest.raises(DTypeError, match="mine: result: result_type says float64, got float32"):
        run(lambda x: x.astype("float32"))
    with pytest.raises(DTypeError, match=r"mine: result: result_type says int32, got 1\.5"):
        run(lambda x: 1.5, ((), "int32"))
    with pytest.raises(DTypeError, match="mine: result: result_type says bool, got 2"):
        run(lambda x: 2, ((), "bool"))
    with pytest.raises(CastError, match=r"mine: result: .*300"):
        run(lambda x: 300, ((), "int8"))
    with pytest.raises(ConversionError, match=r"expected a NumPy array of float64\[2\], got str"):
        run(lambda x: "no")
    with pytest.raises(TreeError, match="mine: returned"):
        run(lambda x: (x, x))
    with pytest.raises(ShapeError, match=r"mine: result\[1\]"):
        run(lambda x: (x, x), (((2,), "float64"), ((), "float64")))
    with pytest.raises(ShapeError, match=r"after the batch axes \(4,\), got \(2,\)"):
        wf.vmap(
            lambda x: wf.call_custom_kernel(
                lambda a: a[0], x, result_type=((2,), "float64"), vectorized=True
            )
        )(points(4, 2)).numpy()
    assert run(lambda x: 3, ((), "float64")) == [3.0]


def test_arguments_of_the_call_are_checked() -> None:
    with pytest.raises(ArgumentError, match="result_type must hold types, got int"):
        wf.call_custom_kernel(np.sin, 1.0, result_type=3)

    class Unhashable:
        __hash__ = None

        def __call__(self, x):
            return x

    with pytest.raises(ArgumentError, match="must be hashable"):
        wf.call_custom_kernel(Unhashable(), 1.0, result_type=((), "float32"))


def test_a_kernel_cannot_write_into_its_operands_and_may_reuse_its_result() -> None:
    buffer = np.zeros(2)

    def keeps(x):
        buffer[:] = x
        return buffer

    kind = ((2,), "float64")
    x = points(2)
    first = wf.call_custom_kernel(keeps, x, result_type=kind)
    second = wf.call_custom_kernel(keeps, x * 2, result_type=kind)
    assert first.tolist() == x.tolist()
    assert second.tolist() == (2 * x).tolist()
    same = wf.call_custom_kernel(lambda a: a, x, result_type=kind)
    assert not np.shares_memory(same.numpy(), x.numpy())

    def writes(a):
        a[0] = 7
        return a

    with pytest.raises(ValueError, match="read-only"):
        wf.call_custom_kernel(writes, x, result_type=kind).numpy()
    assert x.tolist() == points(2).tolist()


def test_an_impure_kernel_runs_at_the_call_in_order_and_every_time() -> None:
    log = []

    def note(x):
        log.append(float(x[0]))
        return x

    big = wf.ones(40_000, dtype="float64")
    kind = ((40_000,), "float64")
    for scale in (1.0, 2.0, 2.0):
        wf.call_custom_kernel(note, big * scale, result_type=kind, pure=False)
    assert log == [1.0, 2.0, 2.0]
    log.clear()
    first, second = (wf.call_custom_kernel(note, big, result_type=kind) for _ in range(2))
    assert log == []
    assert (first + second)[0].item() == 2.0
    assert log == [1.0]


def test_impure_kernels_keep_their_order_in_a_trace() -> None:
    log = []

    def note(name):
        def kernel(x):
            log.append(name)
            return x

        return lambda x: wf.call_custom_kernel(kernel, x, result_type=((), "float32"), pure=False)

    first, second = note("first"), note("second")

    def program(x):
        first(x)
        return second(x + 1)

    traced = wf.trace(program, wf.ones(()))
    assert log == []
    traced.replay(wf.ones(()))
    traced.run([np.ones((), np.float32)] * 2)
    assert log == ["first", "second"] * 2


def test_a_kernel_may_use_weft_itself_even_under_a_transform() -> None:
    def kernel(x):
        return wf.sum(wf.asarray(x) * 2).numpy()

    def run(x):
        return wf.call_custom_kernel(kernel, x, result_type=((), "float64"))

    assert run(points(3)).item() == pytest.approx(2 * points(3).numpy().sum())
    got = wf.vmap(run)(points(2, 3)).numpy()
    np.testing.assert_allclose(got, 2 * points(2, 3).numpy().sum(1))


def test_a_kernel_may_have_no_arguments() -> None:
    made = wf.call_custom_kernel(lambda: np.arange(3), result_type=((3,), "int64"))
    assert made.tolist() == [0, 1, 2]


@pytest.mark.promise("S2.26")
def test_a_class_derived_from_operation_is_the_other_way() -> None:
    class ShiftRows(Operation):
        """Move the last axis by one."""

        factors = "... n -> ... n"
        reasons = {"kernel": "for this test", "jvp": "for this test"}

        def eval(self, x: Any) -> Any:
            return np.roll(x, 1, -1)

        def index(self, *types: Any, **params: Any) -> Factors:
            return Factors.parse(self.factors, [t.rank for t in types], whole="n")

        def vjp(self, primals: Any, out: Any, ct: Any) -> Any:
            return (wf.concat((ct[..., 1:], ct[..., :1]), axis=-1),)

    shift = ShiftRows()
    try:
        x = points(2, 3)
        run = lambda x: call(shift, (x,), {})  # noqa: E731
        np.testing.assert_array_equal(wf.vmap(run)(x).numpy(), np.roll(x.numpy(), 1, -1))
        weights = points(3)
        gradient = wf.grad(lambda v: wf.sum(run(v) * weights))(x[0])
        np.testing.assert_array_equal(gradient.numpy(), np.roll(weights.numpy(), -1))
    finally:
        del OPS["shift_rows"]
