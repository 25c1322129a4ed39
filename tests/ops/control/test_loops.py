import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.graph.trace import Trace
from weft.errors import (
    ArgumentError,
    AxisError,
    ConversionError,
    DTypeError,
    MissingRuleError,
    ShapeError,
    TreeError,
)


def arr(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def same(ours, theirs):
    for a, b in zip(wf.tree_leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-9, atol=1e-9)


def test_python_numbers_take_the_dtype_of_the_loop() -> None:
    xs = wf.asarray(np.ones(3))
    carry, _ = wf.scan(lambda c, x: (c + x, None), 0, xs)
    assert carry.dtype == np.float64
    carry, ys = wf.scan(lambda c, x: (1, 2.0), wf.ones((), dtype="float16"), xs)
    assert carry.dtype == np.float16
    assert ys.dtype == np.float32
    assert wf.cond(True, lambda: xs[0], lambda: 0).dtype == np.float64
    assert wf.cond(True, lambda: 1, lambda: 2.0).item() == 1.0
    total = wf.fori_loop(0, 3, lambda i, s: s + i * xs[0], 0.0)
    assert total.dtype == np.float64


def test_python_numbers_go_to_the_device_of_the_tensors_beside_them() -> None:
    x = wf.to_device(wf.ones(3), "cpu:1")
    carry, ys = wf.scan(lambda c, v: (c + v, 1.0), 0.0, x)
    assert carry.device is ys.device is x.device
    assert wf.cond(True, lambda v: v, lambda v: -v, x).device is x.device
    assert wf.cond(1, lambda: x * 2, lambda: x).device is x.device
    assert wf.fori_loop(0, 2, lambda i, s: s * 2 + i, x).tolist() == [5.0, 5.0, 5.0]


def test_a_carry_that_changes_its_type_is_named() -> None:
    with pytest.raises(
        DTypeError, match=r"scan: carry\['a'\]: dtypes differ \(init float32\[\], step float64"
    ):

        def step(c, x):
            return {"a": c["a"].astype("float64")}, None

        wf.scan(step, {"a": wf.ones(())}, wf.ones(3))
    with pytest.raises(
        ShapeError,
        match=r"while_loop: carry\[1\]: shapes differ \(init float32\[\], body_fun float32\[1\]\)",
    ):
        wf.while_loop(lambda s: s[0] < 1, lambda s: (s[0], s[1][None]), (0, wf.ones(())))
    with pytest.raises(DTypeError, match="fori_loop: carry"):
        wf.fori_loop(0, 3, lambda i, s: s * 0.5, wf.asarray(1))
    with pytest.raises(DTypeError, match="dtypes differ"):
        wf.scan(lambda c, x: (0.5, x), wf.asarray(1), wf.ones(3))


def test_branches_that_disagree_are_named() -> None:
    x = wf.ones(3)
    with pytest.raises(
        ShapeError,
        match=r"cond: result\[0\]: shapes differ \(false_fun float32\[1,3\], true_fun float32",
    ):
        wf.cond(True, lambda: (x, x), lambda: (x[None], x))
    with pytest.raises(
        DTypeError, match=r"switch: result: dtypes differ \(branch 0 float32\[3\], branch 1 int64"
    ):
        wf.switch(0, [lambda: x, lambda: x.astype("int64")])
    with pytest.raises(TreeError, match="cond: results differ in structure"):
        wf.cond(True, lambda: x, lambda: (x, x))
    with pytest.raises(DTypeError, match="dtypes differ"):
        wf.cond(True, lambda: wf.asarray(1), lambda: 0.5)


def test_a_carry_of_another_structure_is_a_tree_error() -> None:
    with pytest.raises(TreeError, match="scan: f returns a carry of structure"):
        wf.scan(lambda c, x: ((c, c), None), wf.ones(()), wf.ones(3))
    with pytest.raises(TreeError, match="must return a pair"):
        wf.scan(lambda c, x: c, wf.ones(()), wf.ones(3))
    with pytest.raises(TreeError, match="must return one bool"):
        wf.while_loop(lambda s: (s, s), lambda s: s, 1.0)


def test_arguments_that_make_no_sense_are_refused() -> None:
    x = wf.ones(3)
    with pytest.raises(
        ShapeError, match=r"cond: pred must have no axes, got shape \(3,\)\nhint: wf.where"
    ):
        wf.cond(x > 0, lambda: 1, lambda: 2)
    with pytest.raises(DTypeError, match="the index must be an integer"):
        wf.switch(0.5, [lambda: 1])
    with pytest.raises(ArgumentError, match="no branches"):
        wf.switch(0, [])
    with pytest.raises(ArgumentError, match="length must be given"):
        wf.scan(lambda c, x: (c, x), x)
    with pytest.raises(ShapeError, match=r"leading axes differ in size \(xs\[0\] 3, xs\[1\] 2\)"):
        wf.scan(lambda c, x: (c, None), x, (x, wf.ones(2)))
    with pytest.raises(ShapeError, match="length 4, xs 3"):
        wf.scan(lambda c, v: (c, None), x, x, length=4)
    with pytest.raises(ShapeError, match="has no axis to go along"):
        wf.map(lambda v: v, wf.ones(()))
    with pytest.raises(ArgumentError, match="length must be at least 0"):
        wf.scan(lambda c, v: (c, None), x, length=-1)
    with pytest.raises(DTypeError, match="length must be an integer"):
        wf.scan(lambda c, v: (c, None), x, length=2.5)
    with pytest.raises(ArgumentError, match="unroll"):
        wf.scan(lambda c, v: (c, None), x, x, unroll=0)
    with pytest.raises(ArgumentError, match="could never end"):
        wf.while_loop(lambda s: True, lambda s: s, ())
    with pytest.raises(ShapeError, match="must return one bool, got"):
        wf.while_loop(lambda s: s > 0, lambda s: s, x)
    with pytest.raises(ArgumentError, match="upper must be one integer"):
        wf.fori_loop(0, wf.asarray(2.5), lambda i, s: s, x)
    with pytest.raises(ConversionError, match="returned str, not tensors"):
        wf.cond(True, lambda: "yes", lambda: "no")


def test_reverse_mode_of_a_while_loop_raises_with_the_way_out() -> None:
    with pytest.raises(MissingRuleError) as caught:
        wf.grad(lambda x: wf.while_loop(lambda s: s < 9.0, lambda s: s * x, x))(2.0)
    assert "while_loop: no vjp rule" in str(caught.value)
    assert "wf.scan, or wf.fori_loop with Python integers as bounds" in str(caught.value)


def test_bounds_that_are_tensors_make_a_loop_of_unknown_length() -> None:
    def run(n, x):
        return wf.fori_loop(0, n, lambda i, s: s * 2 + i, x)

    assert run(wf.asarray(4), wf.asarray(1.0)).item() == run(4, wf.asarray(1.0)).item()
    got = wf.vmap(run, in_axes=(0, None))(wf.asarray([0, 1, 4]), wf.asarray(1.0))
    assert got.tolist() == [run(n, wf.asarray(1.0)).item() for n in (0, 1, 4)]
    with pytest.raises(MissingRuleError):
        wf.vmap(wf.grad(run, argnums=1), in_axes=(0, None))(wf.asarray([0, 1, 4]), 1.0)
    assert wf.grad(lambda x: run(4, x))(1.0).item() == 16.0
    assert wf.fori_loop(5, 2, lambda i, s: s + 1, 0).item() == 0


def noting(log):
    def kernel(x):
        log.append(float(x))
        return x

    return lambda x: wf.call_custom_kernel(kernel, x, result_type=((), "float64"), pure=False)


def test_effects_in_a_body_happen_at_each_step_in_order_though_nobody_reads_the_result() -> None:
    log = []
    note = noting(log)

    def step(c, x):
        note(x)
        note(c)
        return c + x, None

    wf.scan(step, np.float64(0.0), wf.asarray(np.array([1.0, 2.0])))
    assert log == [1.0, 0.0, 2.0, 1.0]
    log.clear()
    for _ in range(2):
        wf.cond(True, note, lambda x: x, wf.asarray(np.float64(3.0)))
    assert log == [3.0, 3.0]
    log.clear()
    wf.while_loop(lambda s: s < 3, lambda s: note(s) + 1, wf.asarray(np.float64(0.0)))
    assert log == [0.0, 1.0, 2.0]


def test_what_would_make_effects_happen_twice_raises() -> None:
    note = noting([])
    x = wf.asarray(np.float64(1.0))
    with pytest.raises(MissingRuleError, match="effects"):
        wf.grad(lambda x: wf.scan(lambda c, _: (c + note(c), None), x, length=2)[0])(x)
    with pytest.raises(MissingRuleError, match="effects"):
        wf.jvp(lambda x: wf.cond(True, note, lambda v: v, x), (x,), (x,))
    with pytest.raises(MissingRuleError, match="all branches would run"):
        wf.vmap(lambda x: wf.cond(x > 0, note, lambda v: v, x))(wf.asarray(np.ones(3)))


@pytest.mark.promise("S2.24")
def test_the_functions_are_public_under_their_names() -> None:
    for name in ("cond", "switch", "while_loop", "fori_loop", "scan", "map", "associative_scan"):
        assert getattr(wf, name) is FUNCTIONS[name]
        assert getattr(wf, name).__doc__
    assert {"switch", "while_loop", "scan"} <= OPS.keys()


def test_bodies_are_traces_without_captures() -> None:
    outer = wf.ones(3)
    traced = wf.trace(lambda x: wf.cond(x[0] > 0, lambda: x * outer, lambda: outer), wf.ones(3))
    (node,) = [n for n in traced.nodes if n.name == "switch"]
    assert all(isinstance(b, Trace) and b.captures == () for b in node.params["branches"])
    assert len(node.inputs) == 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 13])
def test_associative_scan_combines_prefixes_in_order(size, reverse) -> None:
    elems = (arr(size, 2, 2), arr(size, seed=1))

    def combine(a, b):
        return a[0] @ b[0], a[1] * b[1]

    rows = range(size)
    found = []
    for i in reversed(rows) if reverse else rows:
        row = tuple(e[i] for e in elems)
        found.append(combine(found[-1], row) if found else row)
    order = found[::-1] if reverse else found
    theirs = tuple(np.reshape([f[k] for f in order], e.shape) for k, e in enumerate(elems))
    ours = wf.associative_scan(combine, tuple(map(wf.asarray, elems)), reverse=reverse)
    same(ours, theirs)


def test_associative_scan_goes_along_any_axis_and_can_be_differentiated() -> None:
    x = arr(2, 7, 3)
    add = lambda a, b: a + b  # noqa: E731
    same(wf.associative_scan(add, wf.asarray(x), axis=-2), np.cumsum(x, 1))
    ours = wf.grad(lambda x: wf.sum(wf.associative_scan(lambda a, b: a * b, x, axis=1)))
    with jax.enable_x64(True):
        same(ours(wf.asarray(x)), jax.grad(lambda x: jnp.sum(jnp.cumprod(x, 1)))(x))


def test_associative_scan_says_what_does_not_fit() -> None:
    x = wf.ones(4)
    with pytest.raises(DTypeError, match="dtypes differ"):
        wf.associative_scan(lambda a, b: (a + b).astype("float64"), x)
    with pytest.raises(TreeError, match="associative_scan"):
        wf.associative_scan(lambda a, b: (a, b), x)
    with pytest.raises(ShapeError, match="sizes along the axis differ"):
        wf.associative_scan(lambda a, b: a, (x, wf.ones(3)))
    with pytest.raises(AxisError):
        wf.associative_scan(lambda a, b: a, x, axis=1)
    with pytest.raises(ArgumentError, match="no tensors"):
        wf.associative_scan(lambda a, b: a, ())


def test_a_while_loop_on_constants_stays_out_of_reverse_mode() -> None:
    def doubled(x):
        return wf.while_loop(lambda s: s.sum() < 9, lambda s: s * 2, wf.stop_gradient(x))

    def product(x):
        return (x * doubled(x)).sum()

    x = wf.tensor([1.0, 2.0, 3.0])
    functions = (
        product,
        wf.checkpoint(product),
        lambda x: wf.cond(True, product, wf.sum, x),
        lambda x: wf.vmap(product)(x[None]).sum(),
        lambda x: wf.scan(lambda total, row: (total + product(row), None), 0.0, x[None])[0],
    )
    for function in functions:
        assert wf.grad(function)(x).tolist() == doubled(x).tolist()


def test_a_loop_between_tensors_has_a_gradient_where_their_values_are_there() -> None:
    n = wf.tensor(3, dtype="int16")

    def power(x, start=0):
        return wf.fori_loop(start, n, lambda i, c: c * x + wf.astype(i, x.dtype), x)

    def known(x):
        return wf.fori_loop(0, 3, lambda i, c: c * x + wf.astype(i, x.dtype), x)

    assert wf.grad(power)(2.0).item() == wf.grad(known)(2.0).item()
    assert wf.grad(lambda x: power(x, wf.tensor(0)))(2.0).item() == wf.grad(known)(2.0).item()
    both = wf.vmap(wf.grad(power))(wf.tensor([2.0, 3.0]))
    assert both.tolist() == [wf.grad(known)(x).item() for x in (2.0, 3.0)]
    kinds = []
    wf.grad(lambda x: wf.fori_loop(0, n, lambda i, c: kinds.append(i.dtype) or c * x, x))(2.0)
    assert set(kinds) == {n.dtype}
    leaf = wf.tensor(2.0)
    leaf.requires_grad = True
    power(leaf).backward()
    assert leaf.grad is not None
    assert leaf.grad.item() == wf.grad(known)(2.0).item()
    leaf.grad = None
    wf.fori_loop(0, n, lambda i, c: c * leaf, 1.0).backward()
    assert leaf.grad is not None
    assert leaf.grad.item() == 12
    with pytest.raises(MissingRuleError, match="no vjp rule"):
        wf.compile(wf.grad(power))(2.0)
