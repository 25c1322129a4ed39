"""Chains of kernels that run panel by panel: the same bits, and memory for a panel alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import panels
from weft.compiler import recompute as recomputing
from weft.compiler.executable import Interpreted
from weft.compiler.loops import WRITTEN
from weft.compiler.native import Native
from weft.compiler.rebuild import values_of
from weft.compiler.recompute import recompute
from weft.compiler.rewrite import rewrite
from weft.compiler.steps import Panels
from weft.runtime.cpu import program

pytestmark = pytest.mark.slow

SCORES = 8 * 2048 * 2048 * 4  # bytes of all of them, which must not be held
PACKED = 8 * 2048 * 64 * 4  # bytes of a factor that is packed before the panels
LINEAR = 2.5  # what twice the rows may need; panels have up to 256 of them, not always as many


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each core has a panel of its own, so how much memory is worth it depends on them."""
    for module in (panels, recomputing):
        monkeypatch.setattr(module, "pool", SimpleNamespace(cores=2))


def compiled(function: Any, *shapes: tuple[int, ...]) -> Native:
    trace = wf.trace(function, *(wf.zeros(shape) for shape in shapes))
    return Native(recompute(rewrite(trace)[0]))


def planned(function: Any, *shapes: tuple[int, ...], general: bool = False) -> Native:
    """What `compiled` makes, with kernels for all sizes if wanted."""
    trace = wf.trace(function, *(wf.zeros(shape) for shape in shapes))
    return Native(recompute(rewrite(trace)[0]), general=general)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    return wf.scaled_dot_product_attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return wf.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q: Any, k: Any, v: Any) -> Any:
    mask = wf.asarray(random(q.shape[-2], k.shape[-2]) > 0)
    return wf.scaled_dot_product_attention(q, k, v, mask, scale=0.3)


def biased(q: Any, k: Any, v: Any) -> Any:
    return wf.scaled_dot_product_attention(q, k, v, wf.asarray(random(k.shape[-2])))


def grouped(q: Any, k: Any, v: Any) -> Any:
    return wf.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def dropped(q: Any, k: Any, v: Any) -> Any:
    key = wf.random.key(3)
    return wf.scaled_dot_product_attention(q, k, v, dropout_rate=0.25, dropout_key=key)


def windowed(q: Any, k: Any, v: Any) -> Any:
    behind = wf.arange(q.shape[-2])[:, None] - wf.arange(k.shape[-2])
    return wf.scaled_dot_product_attention(q, k, v, (behind >= 0) & (behind < 100))


def all_at_once(q: Any, k: Any, v: Any) -> Any:
    options: Any = {"is_causal": True, "dropout_rate": 0.25, "dropout_key": wf.random.key(3)}
    mask = wf.asarray(random(q.shape[-2], k.shape[-2]) > -1)
    return wf.scaled_dot_product_attention(q, k[:, :2], v[:, :2], mask, enable_gqa=True, **options)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    return wf.softmax(q @ wf.swapaxes(k, -1, -2), -1) @ v


def perceptron(q: Any, k: Any, v: Any) -> Any:
    return wf.gelu(q @ wf.swapaxes(k[0, 0], -1, -2)) @ v[0, 0]


KINDS = [
    attention,
    causal,
    masked,
    biased,
    grouped,
    dropped,
    windowed,
    all_at_once,
    by_hand,
    perceptron,
]


@pytest.mark.parametrize("function", KINDS)
@pytest.mark.parametrize("shape", [(2, 4, 512, 32), (1, 4, 300, 16), (16, 4, 128, 8)], ids=str)
def test_attention_in_panels_has_the_bits_of_separate_kernels(function, shape, monkeypatch):
    arrays = [random(*shape) + i for i in range(3)]
    inside = compiled(function, shape, shape, shape)
    monkeypatch.setattr(panels, "WORTH", 1 << 60)
    apart = compiled(function, shape, shape, shape)
    assert not any(isinstance(step, Panels) for step in apart.steps)
    (expected,) = apart.run(arrays, threads=1)
    for threads in (1, 2, 4):
        (found,) = inside.run(arrays, threads=threads)
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("function", [attention, causal, masked, grouped, by_hand])
def test_attention_holds_scores_of_a_panel_alone(function):
    small, large = (compiled(function, *[(1, 8, n, 64)] * 3) for n in (1024, 2048))
    assert sum(isinstance(step, Panels) for step in large.steps) == 1
    assert large.counts.bytes_planned <= LINEAR * small.counts.bytes_planned
    assert large.counts.bytes_planned < SCORES / 16 + 2 * PACKED


def gradient(function: Any) -> Any:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(wf.square(function(q, k, v)))

    return wf.value_and_grad(loss, argnums=(0, 1, 2))


@pytest.mark.parametrize("function", KINDS)
def test_gradients_of_attention_have_the_bits_of_kept_weights(function, monkeypatch):
    shape = (1, 4, 384, 16)
    arrays = [random(*shape) + i for i in range(3)]
    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    monkeypatch.setattr(panels, "WORTH", 1 << 18)
    inside = compiled(gradient(function), shape, shape, shape)
    monkeypatch.setattr(recomputing, "LARGE", 1 << 60)
    monkeypatch.setattr(panels, "WORTH", 1 << 60)
    expected = compiled(gradient(function), shape, shape, shape).run(arrays, threads=1)
    for threads in (1, 2, 4):
        for x, y in zip(inside.run(arrays, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(x.view(np.int32), y.view(np.int32))


@pytest.mark.parametrize("function", KINDS)
@pytest.mark.parametrize("shape", [(2, 2, 226, 32), (1, 4, 77, 16)], ids=str)
def test_batches_with_one_factor_are_not_taken_for_batches_of_panels(function, shape, monkeypatch):
    monkeypatch.setattr(recomputing, "LARGE", 1 << 15)
    monkeypatch.setattr(panels, "WORTH", 1 << 15)
    arrays = [random(*shape) + i for i in range(3)]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(function(q, k, v)) * 0.5

    slopes = wf.grad(loss, argnums=(0, 1, 2))
    trace = rewrite(wf.trace(slopes, *(wf.zeros(shape) for _ in range(3))))[0]
    expected = Interpreted(trace).run(arrays)
    for x, y in zip(Native(recompute(trace)).run(arrays, threads=2), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(
    "function", [attention, causal, masked, dropped, windowed, all_at_once, by_hand]
)
def test_the_gradient_of_attention_holds_scores_of_a_panel_alone(function, general):
    small, large = (
        planned(gradient(function), *[(1, 8, n, 64)] * 3, general=general) for n in (1024, 2048)
    )
    assert large.counts.bytes_planned <= LINEAR * small.counts.bytes_planned
    assert large.counts.bytes_planned < SCORES / 4 + 4 * PACKED


@pytest.mark.parametrize("function", [attention, causal])
def test_panels_of_the_gradient_of_attention_write_over_their_weights(function):
    made = planned(gradient(function), *[(1, 8, 2048, 64)] * 3)
    (step,) = [step for step in made.steps if isinstance(step, Panels)]
    weights = step.height * 2048 * 4
    assert step.scratch.nbytes / step.workers < 1.1 * weights


@pytest.mark.parametrize("width", [2, 3, 8, 16, 24])
@pytest.mark.parametrize("function", [attention, causal])
def test_the_gradient_of_narrow_heads_holds_scores_of_a_panel_alone(function, width):
    small, large = (planned(gradient(function), *[(1, 8, n, width)] * 3) for n in (1024, 2048))
    assert any(isinstance(step, Panels) for step in large.steps)
    packed = PACKED // 2  # of a factor, too small to be packed at half the length, to 32 columns
    assert large.counts.bytes_planned <= LINEAR * small.counts.bytes_planned + packed
    assert large.counts.bytes_planned < SCORES / 4 + 4 * PACKED


@pytest.mark.parametrize(
    ("heads", "lengths"), [(8, (900, 1000, 1100, 1024)), (256, (240, 246, 164, 246, 82, 123, 256))]
)
def test_lengths_that_came_before_change_nothing_about_panels(heads, lengths, monkeypatch):
    monkeypatch.setattr(recomputing, "LARGE", 1 << 20)
    for rows in lengths:
        made = planned(gradient(causal), *[(1, heads, rows, 64)] * 3)
        scores, factor = heads * rows * rows * 4, heads * rows * 64 * 4
        assert any(isinstance(step, Panels) for step in made.steps)
        assert made.counts.bytes_planned < scores / 2 + 8 * factor


def test_kernels_for_all_lengths_serve_short_ones(monkeypatch):
    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    monkeypatch.setattr(panels, "WORTH", 1 << 18)
    for rows in (240, 246, 164, 256):
        shape = (1, 4, rows, 16)
        arrays = [random(*shape) + i for i in range(3)]
        trace = rewrite(wf.trace(gradient(causal), *(wf.zeros(shape) for _ in range(3))))[0]
        found = Native(recompute(trace), general=True).run(arrays, threads=2)
        for x, y in zip(found, Interpreted(trace).run(arrays), strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("function", [attention, causal, masked, dropped, windowed])
def test_the_gradient_of_a_single_head_holds_scores_of_a_panel_alone(function):
    large = planned(gradient(function), *[(1, 1, 4096, 64)] * 3)
    assert large.counts.bytes_planned < 4096 * 4096 * 4 / 2


SPECIAL = {
    "infinite values": (2, np.inf),
    "values that are no numbers": (2, np.nan),
    "queries that are no numbers": (0, np.nan),
    "infinite keys": (1, np.inf),
    "values that are almost nothing": (2, -1e-45),
    "gradients that are almost nothing": (3, -1e-45),
}


@pytest.mark.parametrize("case", SPECIAL)
@pytest.mark.parametrize("function", [causal, windowed])
@pytest.mark.parametrize("width", [16, 32])
def test_what_a_mask_hides_has_the_bits_of_what_is_computed(width, function, case, monkeypatch):
    def slopes(q: Any, k: Any, v: Any, g: Any) -> Any:
        out, back = wf.vjp(function, q, k, v)
        return out, *back(g)

    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    monkeypatch.setattr(panels, "WORTH", 1 << 18)
    shape = (1, 4, 530, width)
    arrays = [random(*shape) + i for i in range(4)]
    which, number = SPECIAL[case]
    if abs(number) < 1:
        arrays[which] = (arrays[which] * np.float32(number)).astype(np.float32)
    else:
        arrays[which][0, 0, 400, 3] = number
    trace = rewrite(wf.trace(slopes, *(wf.zeros(shape) for _ in range(4))))[0]
    expected = Interpreted(trace).run(arrays)
    found = Native(recompute(trace))
    assert {"unused", "some"} <= {local.name for local in locals_of(found)}
    for x, y in zip(found.run(arrays, threads=2), expected, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        same = (x.view(np.int32) == y.view(np.int32)) | (np.isnan(x) & np.isnan(y))
        assert same.all()


def locals_of(native: Native) -> list[Any]:
    calls = [call for step in native.steps if isinstance(step, Panels) for call in step.calls]
    return [local for call in calls for local in call.request.compiled.kernels[0].locals]


@pytest.mark.parametrize("function", [causal, gradient(causal), windowed])
def test_a_mask_that_memory_has_already_is_not_applied_again(function, monkeypatch):
    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    monkeypatch.setattr(panels, "WORTH", 1 << 18)
    made = compiled(function, *[(1, 4, 530, 32)] * 3)
    kernels = [k for form in made.code for k in form.kernels if "contract" in k.notes]
    assert any(local.name == "rest" for k in kernels for local in k.locals)
    assert not any(x.data == WRITTEN for k in kernels for x in values_of(k.body))


def test_squares_that_are_used_otherwise_are_kept_and_others_are_not(monkeypatch):
    def loss(q: Any, k: Any, v: Any) -> Any:
        mixed = attention(q, k, v)
        logits = mixed @ wf.swapaxes(k, -1, -2)
        return wf.sum(mixed) + wf.sum(wf.sort(logits, axis=-1)[..., :3])

    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    monkeypatch.setattr(panels, "WORTH", 1 << 18)
    shape = (1, 2, 384, 16)
    arrays = [random(*shape) + i for i in range(3)]
    trace = rewrite(wf.trace(wf.grad(loss), *(wf.zeros(shape) for _ in range(3))))[0]
    again = recompute(trace)
    products = [sum(n.name == "matmul" for n in t.nodes) for t in (trace, again)]
    assert products[1] > products[0]
    (expected,), (found,) = (Native(t).run(arrays, threads=2) for t in (trace, again))
    np.testing.assert_array_equal(found, expected)


def test_what_is_needed_outside_a_chain_is_written_whole():
    def both(q: Any, k: Any, v: Any) -> Any:
        weights = wf.softmax(q @ wf.swapaxes(k, -1, -2), -1)
        return weights @ v, weights

    shape = (1, 8, 512, 32)
    arrays = [random(*shape) + i for i in range(3)]
    mixed, weights = compiled(both, shape, shape, shape).run(arrays, threads=2)
    np.testing.assert_array_equal(
        weights,
        Native(
            wf.trace(
                lambda q, k: wf.softmax(q @ wf.swapaxes(k, -1, -2), -1),
                *map(wf.asarray, arrays[:2]),
            )
        ).run(arrays[:2], threads=1)[0],
    )
    np.testing.assert_allclose(mixed, weights @ arrays[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_run_that_pauses_after_every_panel_does_each_once(threads, is_gradient, monkeypatch):
    shape = (2, 4, 512, 32)
    arrays = [random(*shape) + i for i in range(3)]
    function = gradient(causal) if is_gradient else causal
    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    expected = compiled(function, shape, shape, shape).run(arrays, threads=1)
    monkeypatch.setattr(program, "_PAUSE_NS", 0)
    pausing = compiled(function, shape, shape, shape)
    inside = [step for step in pausing.steps if isinstance(step, Panels)]
    assert [step.in_order for step in inside] == [is_gradient]
    for _ in range(3):
        for x, y in zip(pausing.run(arrays, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(x, y)


def test_rows_of_all_batches_are_one_where_the_right_factors_are_shared(monkeypatch):
    def layers(x: Any, first: Any, second: Any) -> Any:
        mixed = wf.tanh(x @ first) @ second
        return wf.softmax(wf.gelu(mixed @ first) @ second, -1)

    shapes = (12, 100, 64), (64, 512), (512, 64)
    arrays = [random(*shape) for shape in shapes]
    inside = compiled(layers, *shapes)
    assert any(isinstance(step, Panels) for step in inside.steps)
    monkeypatch.setattr(panels, "WORTH", 1 << 60)
    (expected,) = compiled(layers, *shapes).run(arrays, threads=1)
    np.testing.assert_array_equal(inside.run(arrays, threads=2)[0], expected)


def test_panels_run_inside_loops():
    def layers(x: Any, k: Any, v: Any) -> Any:
        return wf.scan(lambda x, kv: (causal(x, *kv), ()), x, (k, v))[0]

    shape, many = (2, 4, 512, 32), (3, 2, 4, 512, 32)
    x, k, v = random(*shape), random(*many), random(*many) + 1
    loop = compiled(layers, shape, many, many)
    assert loop.counts.bytes_planned < 2 * 4 * 512 * 512 * 4
    (found,) = loop.run([x, k, v], threads=2)
    one = compiled(causal, shape, shape, shape)
    for keys, values in zip(k, v, strict=True):
        (x,) = one.run([x, keys, values], threads=1)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("function", [causal, grouped, dropped])
def test_a_compiled_gradient_has_the_bits_of_plain_calls(function, monkeypatch):
    monkeypatch.setattr(recomputing, "LARGE", 1 << 19)
    arrays = [wf.asarray(random(1, 4, 320, 24) + i) for i in range(3)]
    plain = gradient(function)(*arrays)
    value, slopes = wf.compile(gradient(function))(*arrays)
    assert value.item() == plain[0].item()
    for x, y in zip(slopes, plain[1], strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_watchers_see_the_kernels_of_panels():
    arrays = [random(1, 8, 512, 32) + i for i in range(3)]
    inside = compiled(causal, *[(1, 8, 512, 32)] * 3)
    with wf.profile() as found:
        inside.run(arrays, threads=2)
    assert "matmul" in str(found)


def test_a_listing_tells_of_panels():
    assert "panels of" in compiled(causal, *[(1, 8, 1024, 64)] * 3).explain()


@pytest.mark.parametrize("function", [attention, causal, perceptron])
def test_the_gradient_of_a_plain_sum_has_the_bits_of_kept_weights(function, monkeypatch):
    def slope(q: Any, k: Any, v: Any) -> Any:
        return wf.grad(lambda *args: wf.sum(function(*args)), argnums=(0, 1, 2))(q, k, v)

    shape = (1, 4, 512, 16)
    arrays = [random(*shape) + i for i in range(3)]
    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    inside = compiled(slope, shape, shape, shape)
    assert any(isinstance(step, Panels) for step in inside.steps)
    monkeypatch.setattr(recomputing, "LARGE", 1 << 60)
    monkeypatch.setattr(panels, "WORTH", 1 << 60)
    expected = compiled(slope, shape, shape, shape).run(arrays, threads=1)
    for threads in (1, 2, 4):
        for x, y in zip(inside.run(arrays, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(x.view(np.int32), y.view(np.int32))


def normalized(q: Any, k: Any, v: Any) -> Any:
    return wf.layer_norm(attention(q, k, v) + q, q.shape[-1:])


def activated(q: Any, k: Any, v: Any) -> Any:
    return wf.gelu(causal(q, k, v)) * wf.softmax(q, -1)


def mixed_rows(q: Any, k: Any, v: Any) -> Any:
    return wf.flip(attention(q, k, v), axis=-2) * v


@pytest.mark.parametrize(
    ("function", "products"), [(attention, 6), (causal, 6), (activated, 6), (mixed_rows, 7)]
)
def test_gradients_that_read_sums_row_by_row_go_on_with_the_weights_of_a_panel(function, products):
    shapes = [(1, 8, 2048, 64)] * 3
    trace = wf.trace(gradient(function), *(wf.zeros(shape) for shape in shapes))
    again = recompute(rewrite(trace)[0])
    assert sum(node.name == "matmul" for node in again.nodes) == products


def projected(q: Any, k: Any, v: Any) -> Any:
    heads = wf.permute_dims(causal(q, k, v), (0, 2, 1, 3))
    width = q.shape[1] * q.shape[3]
    joined = wf.reshape(heads, (*q.shape[:1], q.shape[2], width))
    return wf.tanh(joined @ wf.asarray(random(width, width)))


@pytest.mark.parametrize("function", [normalized, activated, mixed_rows, projected])
def test_what_follows_attention_needs_no_whole_scores(function, monkeypatch):
    small, large = (planned(gradient(function), *[(1, 8, n, 64)] * 3) for n in (1024, 2048))
    assert large.counts.bytes_planned <= LINEAR * small.counts.bytes_planned
    assert large.counts.bytes_planned < SCORES / 4 + 4 * PACKED
    monkeypatch.setattr(recomputing, "LARGE", 1 << 18)
    monkeypatch.setattr(panels, "WORTH", 1 << 18)
    shape = (1, 4, 384, 16)
    arrays = [random(*shape) + i for i in range(3)]
    inside = compiled(gradient(function), shape, shape, shape)
    monkeypatch.setattr(recomputing, "LARGE", 1 << 60)
    monkeypatch.setattr(panels, "WORTH", 1 << 60)
    expected = compiled(gradient(function), shape, shape, shape).run(arrays, threads=1)
    for x, y in zip(inside.run(arrays, threads=2), expected, strict=True):
        np.testing.assert_array_equal(x.view(np.int32), y.view(np.int32))


def test_no_kernel_is_compiled_for_a_product_that_runs_in_a_panel_alone():
    def chain(x: Any, w: Any, v: Any) -> Any:
        return wf.tanh(x @ w) @ v

    made = compiled(chain, (8192, 256), (256, 1024), (1024, 256))
    *packs, step = made.steps
    assert isinstance(step, Panels)
    assert [each.name for each in packs] == ["matmul_pack", "matmul_pack"]
    assert set(made.code) == {call.request.compiled for call in step.calls}


def heights_of(panel: Panels) -> list[int]:
    """The rows of the tiles of each product."""
    notes = (call.request.compiled.kernels[0].notes for call in panel.calls)
    return [each["contract"].tile_rows for each in notes if "contract" in each]


@pytest.mark.parametrize("rows", [128, 256])
def test_tiles_of_a_product_are_flat_where_a_mask_ends_its_rows(rows: int) -> None:
    shape = (16, 4, rows, 32)
    arrays = [random(*shape) + i for i in range(3)]
    made = planned(causal, *[shape] * 3)
    (panel,) = [step for step in made.steps if isinstance(step, Panels)]
    heights = heights_of(panel)
    assert min(heights) < max(heights) == panel.height
    trace = wf.trace(causal, *(wf.zeros(shape) for _ in range(3)))
    for threads in (1, 2):
        found = made.run(arrays, threads)
        for x, y in zip(found, Interpreted(trace).run(arrays), strict=True):
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    (whole,) = [s for s in planned(attention, *[shape] * 3).steps if isinstance(s, Panels)]
    assert len({*heights_of(whole)}) == 1
