"""Derivatives of one's own, checkpoints and host callbacks."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import (
    ArgumentError,
    DifferentiationError,
    DTypeError,
    MissingRuleError,
    ShapeError,
    TreeError,
)
from weft.testing import GradientMismatch, check_grads


def scaled_vjp():
    @wf.custom_vjp
    def f(x, y):
        return wf.sin(x) * y

    def forward(x, y):
        return f(x, y), {"slope": wf.cos(x) * y, "sine": wf.sin(x)}

    f.defvjp(forward, lambda saved, ct: (10 * ct * saved["slope"], ct * saved["sine"]))
    return f


def scaled_jvp():
    @wf.custom_jvp
    def f(x, y):
        return wf.sin(x) * y

    @f.defjvp
    def rule(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        return f(x, y), 10 * dx * wf.cos(x) * y + wf.sin(x) * dy

    return f


POINTS = np.linspace(-1, 1, 4)


@pytest.mark.parametrize("make", [scaled_vjp, scaled_jvp])
def test_the_rule_is_used_in_both_modes_and_under_vmap(make) -> None:
    f = make()
    x, y = wf.asarray(POINTS), wf.asarray(POINTS + 2)
    want = 10 * np.cos(POINTS) * (POINTS + 2)
    total = lambda x, y: f(x, y).sum()  # noqa: E731
    one = wf.ones_like(x)
    forms = {
        "reverse": wf.grad(total)(x, y),
        "forward": wf.jvp(lambda x: f(x, y), x, one)[1],
        "map of reverse": wf.vmap(wf.grad(f))(x, y),
        "reverse of map": wf.grad(lambda x: wf.vmap(f)(x, y).sum())(x),
        "map of forward": wf.vmap(lambda x, y: wf.jvp(lambda v: f(v, y), x, 1.0)[1])(x, y),
        "forward of map": wf.jvp(lambda x: wf.vmap(f)(x, y), x, one)[1],
        "one side mapped": wf.grad(lambda x: wf.vmap(lambda v: f(v, y[0]))(x).sum())(x),
        "inside a checkpoint": wf.grad(wf.checkpoint(total))(x, y),
    }
    for name, got in forms.items():
        expected = 10 * np.cos(POINTS) * (POINTS[0] + 2) if name == "one side mapped" else want
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, err_msg=name)


def test_arguments_that_are_not_differentiated() -> None:
    @wf.custom_vjp
    def plain(x):
        return x

    power = wf.custom_vjp(lambda n, x: x**n, nondiff_argnums=(0,))
    power.defvjp(lambda n, x: (x**n, x), lambda n, x, ct: (100 * ct * n * x ** (n - 1),))
    assert wf.grad(lambda x: power(3, x))(2.0).item() == pytest.approx(1200.0)
    with pytest.raises(MissingRuleError, match="defvjp"):
        plain(1.0)


def test_a_backward_rule_of_wrong_shape_is_refused() -> None:
    f = wf.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (ct, ct))
    with pytest.raises(TreeError, match="2 cotangents for 1 arguments"):
        wf.grad(f)(1.0)


def test_a_hidden_argument_is_refused() -> None:
    def outer(y):
        f = wf.custom_vjp(lambda x: x * y)
        f.defvjp(lambda x: (x * y, None), lambda _, ct: (ct,))
        return f(1.0)

    with pytest.raises(DifferentiationError, match="pass it as an argument"):
        wf.grad(outer)(2.0)


def _scaled_by_rule(kind: str, a, scale):
    if kind == "custom_vjp":
        f = wf.custom_vjp(lambda a: wf.sin(a) * scale)
        f.defvjp(lambda a: (wf.sin(a) * scale, a), lambda a, ct: (10 * ct * a * scale,))
    else:
        f = wf.custom_jvp(lambda a: wf.sin(a) * scale)
        f.defjvp(lambda primals, tangents: (f(*primals), 10 * tangents[0] * primals[0] * scale))
    return f(a).sum()


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_what_a_function_uses_may_be_of_an_enclosing_transform(kind) -> None:
    def slope(a, scale):
        return wf.grad(lambda a: _scaled_by_rule(kind, a, scale))(a)

    def moved(a, scale):
        return wf.jvp(lambda a: _scaled_by_rule(kind, a, scale), (a,), (a,))[1]

    a, scale = wf.tensor([1.0, 2.0, 3.0]), wf.tensor([4.0, 5.0, 6.0])
    wanted = [40.0, 100.0, 180.0]
    assert slope(a, scale).tolist() == wanted
    assert wf.compile(slope)(a, scale).tolist() == wanted
    assert wf.vmap(slope)(a, scale).tolist() == wanted
    assert wf.compile(wf.vmap(slope))(a, scale).tolist() == wanted
    assert wf.map(lambda pair: slope(*pair), (a, scale)).tolist() == wanted
    assert wf.cond(a[0] > 0, slope, lambda a, scale: a, a, scale).tolist() == wanted
    assert wf.vmap(moved)(a, scale).tolist() == [40.0, 200.0, 540.0]
    assert wf.vmap(slope, in_axes=(None, 0))(a[0], scale).tolist() == [40.0, 50.0, 60.0]


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        wf.compile,
        wf.vmap,
        wf.checkpoint,
        lambda f: lambda s: wf.map(f, s),
        lambda f: lambda s: wf.cond(s[0] > 0, f, f, s),
        lambda f: lambda s: wf.scan(lambda c, v: (c + f(v), c), 0.0, s)[0],
    ],
    ids="plain compile vmap checkpoint map cond scan".split(),
)
def test_a_derivative_by_what_rules_do_not_know_is_refused(kind, wrap) -> None:
    a, scale = wf.tensor(2.0), wf.tensor([4.0, 5.0, 6.0])
    run = wrap(lambda scale: _scaled_by_rule(kind, a, scale))
    for derive in (
        lambda: wf.grad(lambda s: run(s).sum())(scale),
        lambda: wf.jvp(run, (scale,), (scale,)),
        lambda: wf.compile(wf.grad(lambda s: run(s).sum()))(scale),
    ):
        with pytest.raises(DifferentiationError, match=f"{kind}: the function uses a tensor"):
            derive()


def test_checkpoint_works_in_both_modes_and_captures_closures() -> None:
    w = wf.asarray(POINTS)

    def loss(w):
        layer = wf.checkpoint(lambda x: wf.sin(x * w).sum())
        return layer(wf.asarray(POINTS + 1))

    plain = lambda w: wf.sin(wf.asarray(POINTS + 1) * w).sum()  # noqa: E731
    np.testing.assert_allclose(wf.grad(loss)(w).numpy(), wf.grad(plain)(w).numpy(), rtol=1e-12)
    for f in (loss, plain):
        np.testing.assert_allclose(
            wf.jvp(f, w, w)[1].item(), wf.jvp(plain, w, w)[1].item(), rtol=1e-12
        )
    np.testing.assert_allclose(wf.hessian(loss)(w).numpy(), wf.hessian(plain)(w).numpy(), rtol=1e-9)


def test_callbacks_run_in_order_once_for_each_slice() -> None:
    seen = []

    def f(x):
        wf.callback(lambda v: seen.append(("a", float(v))) or (), (), x)
        y = wf.callback(lambda v: seen.append(("b", float(v))) or v * 2, ((), "float32"), x)
        return y + 1

    assert f(wf.tensor(1.0)).item() == 3.0
    assert seen == [("a", 1.0), ("b", 1.0)]
    seen.clear()
    assert wf.vmap(f)(wf.tensor([1.0, 2.0])).tolist() == [3.0, 5.0]
    assert sorted(seen) == [("a", 1.0), ("a", 2.0), ("b", 1.0), ("b", 2.0)]


@pytest.mark.parametrize("size", [4, 200_000])
def test_what_a_callback_keeps_stays_as_it_was(size: int) -> None:
    kept, sums = [], []

    def keep(x):
        kept.append(x)
        sums.append(wf.asarray(x) * 2)
        return ()

    @wf.compile
    def function(x):
        y = x * 2
        wf.callback(keep, (), y)
        z = wf.cumsum(y)
        wf.callback(keep, (), z)
        return wf.sum(wf.flip(z) - y)

    x = np.arange(size, dtype=np.float64)
    for factor in (1, 3, 5):
        function(wf.tensor(x * factor))
    for number, (array, twice) in enumerate(zip(kept, sums, strict=True)):
        y = x * (1, 3, 5)[number // 2] * 2
        expected = np.cumsum(y) if number % 2 else y
        assert np.array_equal(array, expected)
        assert np.array_equal(twice.numpy(), expected * 2)


def test_a_callback_may_have_a_derivative() -> None:
    def cube(x):
        return wf.callback(
            lambda v: v**3, x.type, x, vjp=lambda primals, out, ct: (3 * primals[0] ** 2 * ct,)
        )

    assert wf.grad(cube)(wf.tensor(2.0)).item() == 12.0
    with pytest.raises(MissingRuleError, match="vjp"):
        wf.grad(lambda x: wf.callback(np.sin, x.type, x))(wf.tensor(2.0))


def test_print_shows_values_inside_transforms(capsys) -> None:
    wf.grad(lambda x: wf.print("x is {}", x) or x * 2)(wf.tensor(3.0))
    wf.vmap(lambda x: wf.print("row {}", x) or x)(wf.tensor([1.0, 2.0]))
    assert capsys.readouterr().out.splitlines() == ["x is 3.0", "row 1.0", "row 2.0"]


def test_print_takes_values_by_name(capsys) -> None:
    def shown(x):
        wf.print("{} of {total:.1f}, {}", x, x + 1, total=x.sum())
        return x

    for call in (shown, wf.compile(shown), wf.vmap(shown)):
        call(wf.ones((1, 1))).numpy()
    want = ["[[1.]] of 1.0, [[2.]]"] * 2 + ["[1.] of 1.0, [2.]"]
    assert capsys.readouterr().out.splitlines() == want
    with pytest.raises(ArgumentError, match="does not fit 1 values"):
        wf.print("{x}", y=wf.ones(1))
    with pytest.raises(TypeError, match=r"print\(\) missing"):
        wf.print()


def test_check_grads_finds_a_wrong_rule() -> None:
    check_grads(lambda x: wf.sin(x) * x, wf.asarray(POINTS), order=3)
    wrong = wf.custom_jvp(wf.sin)
    wrong.defjvp(lambda p, t: (wf.sin(*p), t[0]))
    for mode in ("fwd", "rev"):
        with pytest.raises(GradientMismatch, match="mode differs"):
            check_grads(wrong, wf.asarray(POINTS), modes=(mode,))


@pytest.mark.parametrize("wrap", [wf.checkpoint, "custom_vjp", "custom_jvp"])
def test_batching_rules_inside_may_make_constants(wrap) -> None:
    def f(x):
        return wf.cond(x.sum() > 0, wf.sin, wf.cos, x)

    wrapped = wrap(f) if callable(wrap) else getattr(wf, wrap)(f)
    if wrap == "custom_vjp":
        wrapped.defvjp(lambda x: (f(x), x), lambda x, ct: wf.vjp(f, x)[1](ct))
    if wrap == "custom_jvp":
        wrapped.defjvp(lambda p, t: wf.jvp(f, p, t))
    x = wf.asarray(POINTS.reshape(2, 2))
    want = wf.grad(lambda x: wf.vmap(f)(x).sum())(x).numpy()
    for found in (
        wf.grad(lambda x: wf.vmap(wrapped)(x).sum())(x),
        wf.vmap(wf.grad(lambda v: wrapped(v).sum()))(x),
        wf.grad(wf.checkpoint(lambda x: wf.vmap(wrapped)(x).sum()))(x),
    ):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-12)


def rules(forward, backward):
    f = wf.custom_vjp(lambda x: x * 2)
    f.defvjp(forward, backward)
    return lambda: wf.vjp(f, wf.ones(3))[1](wf.ones(3))


def rule(made):
    f = wf.custom_jvp(lambda x: x * 2)
    f.defjvp(made)
    return lambda: wf.jvp(f, wf.ones(3), wf.ones(3))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (rules(lambda x: x, lambda s, ct: (ct,)), TreeError, "forward must return a pair"),
        (rules(lambda x: ((x, x), x), lambda s, ct: (ct,)), TreeError, "forward's result"),
        (rules(lambda x: (x, x), lambda s, ct: ct), TreeError, "tuple of cotangents, got Tensor"),
        (rules(lambda x: (x, x), lambda s, ct: (ct.sum(),)), ShapeError, r"\(\), .* \(3,\)"),
        (rules(lambda x: (x, x), lambda s, ct: ((ct, ct),)), TreeError, "a cotangent"),
        (
            rules(lambda x: (x, x), lambda s, ct: (ct.astype(wf.float64),)),
            DTypeError,
            "float64, .* float32[^a]*cast",
        ),
        (rule(lambda p, t: t[0]), TreeError, "the rule must return a pair"),
        (rule(lambda p, t: (p[0], (t[0],))), TreeError, "structure"),
        (rule(lambda p, t: (p[0], t[0].sum())), ShapeError, "a tangent has shape"),
        (rule(lambda p, t: (p[0], t[0].astype(wf.float64))), DTypeError, "a tangent has dtype"),
    ],
)
def test_rules_that_give_other_types_are_refused(call, error, text) -> None:
    with pytest.raises(error, match=text):
        call()


def test_arguments_may_be_given_by_keyword() -> None:
    f = wf.custom_vjp(lambda x, scale=2.0: x * scale)
    f.defvjp(lambda x, scale: (x * scale, scale), lambda scale, ct: (10 * ct * scale, None))
    assert wf.grad(lambda x: f(x=x))(1.0).item() == 20.0
    assert wf.grad(lambda x: f(x, scale=3.0))(1.0).item() == 30.0
    strict = wf.custom_vjp(lambda x, *, scale: x * scale)
    strict.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    with pytest.raises(ArgumentError, match="keyword scale"):
        strict(1.0, scale=2.0)


def test_rules_may_use_the_named_axes_of_a_map() -> None:
    x = wf.tensor([1.0, 2.0, 3.0])
    f = wf.custom_vjp(lambda v: wf.psum(v, "i") * v)
    f.defvjp(lambda v: (wf.psum(v, "i") * v, v), lambda v, ct: (ct * wf.psum(v, "i"),))
    g = wf.custom_jvp(lambda v: wf.psum(v, "i") * v)
    g.defjvp(lambda p, t: (wf.psum(p[0], "i") * p[0], t[0] * wf.psum(p[0], "i")))
    for function in (f, g):
        total = lambda x, f=function: wf.vmap(f, axis_name="i")(x).sum()  # noqa: E731
        assert wf.grad(total)(x).tolist() == [6.0, 6.0, 6.0]
        assert wf.jvp(total, x, wf.ones(3))[1].item() == 18.0


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_each_level_of_maps_may_add_constants(kind) -> None:
    def f(p, x):
        return wf.cond(p > 0, wf.sin, wf.cos, x)

    wrapped = getattr(wf, kind)(f)
    if kind == "custom_vjp":
        wrapped.defvjp(lambda p, x: (f(p, x), (p, x)), lambda s, ct: wf.vjp(f, *s)[1](ct))
    else:
        wrapped.defjvp(lambda p, t: wf.jvp(f, p, t))
    p, x = wf.asarray(POINTS[:2]), wf.asarray(POINTS)

    def total(f):
        rows = wf.vmap(wf.vmap(f, in_axes=(None, 0)), in_axes=(0, None))
        return lambda x: (rows(p, x) * x).sum()

    for derive in (wf.grad, lambda f: lambda x: wf.jvp(f, x, x)[1]):
        found, want = (derive(total(g))(x).numpy() for g in (wrapped, f))
        np.testing.assert_allclose(found, want, rtol=1e-12)


def test_cotangents_of_operands_that_one_map_leaves_out_are_summed_over_that_map() -> None:
    f = wf.custom_vjp(lambda a, b: a * b)
    f.defvjp(lambda a, b: (a * b, (a, b)), lambda s, ct: (ct * s[1], ct * s[0]))
    a, b = wf.asarray(POINTS[:2]), wf.asarray(POINTS[:2] + 1)
    weights = wf.asarray([[1.0, 10.0], [100.0, 1000.0]]).astype(wf.float64)

    def table(f):
        rows = wf.vmap(wf.vmap(f, in_axes=(None, 0)), in_axes=(0, None))
        return lambda a, b: (rows(a, b) * weights).sum()

    plain = lambda a, b: a * b  # noqa: E731
    for mode in (
        lambda g: wf.grad(g, argnums=(0, 1))(a, b),
        lambda g: wf.jvp(g, (a, b), (b, a))[1:],
    ):
        for found, want in zip(mode(table(f)), mode(table(plain)), strict=True):
            np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-12)


def test_rules_may_assign_to_what_they_are_given():
    def forward(x):
        x += 1
        return x * 2, x

    def backward(saved, ct):
        saved *= 3
        ct *= saved
        return (ct,)

    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        x += 1
        t *= 6 * x
        return x * 2, t

    reverse, both = wf.custom_vjp(lambda x: (x + 1) * 2), wf.custom_jvp(lambda x: (x + 1) * 2)
    reverse.defvjp(forward, backward)
    both.defjvp(rule)
    for f, slope in ((reverse, 6), (both, 12)):
        x, t = wf.ones(2), wf.ones(2)
        pullback = wf.vjp(lambda x, f=f: f(x) + x, x)[1]
        for _ in range(2):
            assert pullback(t)[0].tolist() == [slope + 1] * 2
        _, pushed = wf.jvp(lambda x, f=f: f(x) + x, (x,), (t,))
        assert pushed.tolist() == [slope + 1] * 2
        assert x.tolist() == t.tolist() == [1, 1]


def test_rules_use_the_values_of_their_time():
    kept, factor, x = wf.ones(2), wf.ones(2), wf.ones(2)
    f = wf.custom_vjp(lambda k, x: x * k, nondiff_argnums=(0,))
    f.defvjp(lambda k, x: (x * k, kept), lambda k, saved, ct: (ct * k * saved,))
    pullback = wf.vjp(lambda x: f(factor, x), x)[1]
    kept[0] = factor[1] = 5.0
    assert pullback(wf.ones(2))[0].tolist() == [1, 1]


def test_a_function_with_rules_may_give_integers_as_well():
    reverse = wf.custom_vjp(lambda x: (x * x, wf.argmax(x)))
    reverse.defvjp(lambda x: ((x * x, wf.argmax(x)), x), lambda x, ct: (2 * x * ct[0],))
    x, t = wf.tensor([1.0, 3.0]), wf.tensor([1.0, 10.0])
    (value, place), (slope, _) = wf.jvp(reverse, (x,), (t,))
    assert value.tolist() == [1, 9] and place.item() == 1 and slope.tolist() == [2, 60]
    assert wf.grad(lambda x: reverse(x)[0].sum())(x).tolist() == [2, 6]
    assert wf.hessian(lambda x: reverse(x)[0].sum())(x).tolist() == [[2, 0], [0, 2]]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_numbers_among_the_arguments_stay_numbers(dtype) -> None:
    x, seen = wf.ones(3, dtype=dtype), []
    f = wf.custom_vjp(lambda x, s: x * s)
    f.defvjp(lambda x, s: (x * s, (x, s)), lambda r, ct: (ct * r[1], wf.sum(ct * r[0])))
    g = wf.custom_jvp(lambda x, s: x * s)
    g.defjvp(lambda p, t: (seen.append(t[1]), (p[0] * p[1], t[0] * p[1] + p[0] * t[1]))[1])
    tenth = wf.tensor(0.1, dtype=dtype).tolist()
    for each in (f, g):
        slope = wf.grad(lambda x, s, each=each: each(x, s).sum())

        def twice(x, each=each):
            return wf.scan(lambda c, _: (each(c, 0.1), c), x, None, 2)[0]

        found = [
            each(x, 0.1),
            wf.vmap(each, in_axes=(0, None))(x, 0.1),
            slope(x, 0.1),
            wf.compile(slope)(x, 0.1),
            wf.vmap(slope, in_axes=(0, None))(x, 0.1),
            wf.jvp(lambda x, each=each: each(x, 0.1), x, x)[1],
        ]
        for y in found:
            assert y.dtype == x.dtype
            assert y.tolist() == [tenth] * 3
        last = wf.grad(lambda x, twice=twice: twice(x).sum())(x)
        assert last.tolist() == [(wf.tensor(tenth, dtype=dtype) * 0.1).item()] * 3
    assert set(map(type, seen)) == {int}
    assert f(wf.ones(2, dtype="int8"), 3).dtype == wf.int8


def test_what_forward_saves_beside_tensors_is_kept_as_it_is() -> None:
    kept = []
    f = wf.custom_vjp(lambda x, how: x * 2)
    saved = lambda x, how: (x * 2, {"how": how, "rows": x.shape[0], "x": x})  # noqa: E731
    f.defvjp(saved, lambda r, ct: (kept.append((r["how"], r["rows"])), (ct * 2, None))[1])
    assert wf.grad(lambda x: f(x, "fast").sum())(wf.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert kept == [("fast", 3)]


RESULTS = {
    "another shape": (lambda x: x.sum(), ShapeError, r"the rule float32\[\], the function float32"),
    "another dtype": (lambda x: x.astype("float64"), DTypeError, r"the rule float64\[3\]"),
    "an integer": (lambda x: x.astype("int64"), DTypeError, r"the rule int64\[3\]"),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_a_rule_gives_results_of_the_types_that_its_function_gives(kind) -> None:
    change, error, told = RESULTS[kind]
    f = wf.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (change(x * 2), None), lambda _, ct: (wf.ones(3),))
    g = wf.custom_jvp(lambda x: x * 2)
    g.defjvp(lambda p, t: (change(p[0] * 2), change(t[0] * 2)))
    x = wf.ones(3)
    with pytest.raises(error, match="custom_vjp: forward: a result: .*" + told):
        wf.vjp(f, x)
    with pytest.raises(error, match="custom_jvp: the rule: a result: .*" + told):
        wf.jvp(g, (x,), (x,))


def test_a_number_as_a_rule_s_result_has_all_its_digits() -> None:
    f = wf.custom_vjp(lambda x: x.sum())
    f.defvjp(lambda x: (0.1, None), lambda _, ct: (ct * wf.ones(3, dtype="float64"),))
    assert wf.vjp(f, wf.ones(3, dtype="float64"))[0].item() == 0.1


def test_rules_get_the_arguments_that_were_left_out() -> None:
    def scaled(x, s=3.0, *, name="unused"):
        return x * s

    f = wf.custom_vjp(scaled)
    f.defvjp(lambda x, s: (x * s, s), lambda s, ct: (10 * ct * s, None))
    g = wf.custom_jvp(scaled, nondiff_argnums=(1,))
    g.defjvp(lambda s, p, t: (p[0] * s, 10 * t[0] * s))
    for each in (f, g):
        for call in (each, lambda x, each=each: each(x, s=3.0)):
            assert wf.grad(lambda x, call=call: call(x).sum())(wf.ones(2)).tolist() == [30.0, 30.0]


def test_a_traced_tensor_in_nondiff_argnums_is_refused_by_name() -> None:
    f = wf.custom_vjp(lambda n, x: x * (n + 1), nondiff_argnums=(0,))
    f.defvjp(lambda n, x: (x * (n + 1), None), lambda n, _, ct: (ct * (n + 1),))
    g = wf.custom_jvp(lambda n, x: x * (n + 1), nondiff_argnums=(0,))
    g.defjvp(lambda n, p, t: (p[0] * (n + 1), t[0] * (n + 1)))
    for each, name in ((f, "custom_vjp"), (g, "custom_jvp")):
        loop = lambda x, each=each: wf.fori_loop(0, 3, lambda i, c: each(i, c), x)  # noqa: E731
        assert loop(1.0).item() == 6.0
        with pytest.raises(DifferentiationError, match=rf"{name}: argument 0 .*int64.* fori_loop"):
            wf.grad(loop)(1.0)
        mapped = wf.vmap(lambda n, each=each: wf.grad(lambda x: each(n, x))(1.0))
        assert mapped(wf.arange(3.0)).tolist() == [1.0, 2.0, 3.0]
