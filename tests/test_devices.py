"""Functions follow their operands: constants they make, numbers and lists are where tensors are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.device_calls import CALLS, Call, Held, legal_calls
from weft.core.common.slots import FUNCTIONS, OPS
from weft.errors import DeviceMismatchError, WeftError
from weft.ops.base import Operation, call
from weft.testing.samples import calls, operands

HERE = "cpu:1"  # where operands are; the default is cpu:0

# These take no tensor, or one that is read as a shape or a number.
OF_NUMBERS = frozenset(
    "arange bartlett blackman diag_indices empty eye fromiter fromfunction frombuffer from_numpy"
    " hamming hanning identity indices ones rand randn normal gaussian uniform tri tril_indices"
    " triu_indices zeros fft.fftfreq fft.rfftfreq random.get_state random.key random.next_key"
    " random.seed random.set_state random.generator random.Generator".split()
)
# What is behind the first operand of these is read as numbers: shapes, positions, counts.
FIRST_DECIDES = frozenset(
    "argpartition array_split broadcast_to delete expand hsplit insert partition repeat resize"
    " roll split tile unravel_index unsqueeze".split()
)
# These are for meshes, files, trees or people, or belong to other functions.
NOT_OF_TENSORS = frozenset(
    "all_gather all_reduce all_to_all axis_index axis_size backward breakpoint broadcast"
    " broadcast_shapes call_custom_kernel callback checkpoint compile custom_jvp custom_vjp debug"
    " debug_nans eval_shape gpipe is_basic_index iscomplexobj isrealobj isscalar jit laid_out_like"
    " load_compiled ndim no_grad one_forward_one_backward plan pmax pmean pmin ppermute print psum"
    " realize reduce_scatter register_dataclass register_hook register_tree renew_leaf"
    " requires_grad reshard result_layouts shape shard shard_map size spread_over to to_device"
    " trace traced tree_flatten tree_leaves tree_map tree_map_with_path tree_paths tree_structure"
    " tree_unflatten tensor_leaves untraced visualize visualize_sharding vmap_again with_batch_dims"
    " with_sharding_constraint dual_of einsum_path updater write_on".split()
)


def _public() -> dict[str, Callable[..., Any]]:
    found = dict(FUNCTIONS)
    for prefix in ("linalg", "fft", "random"):
        space = getattr(wf, prefix)
        found |= {f"{prefix}.{name}": getattr(space, name) for name in space.__all__}
    found |= {name: getattr(wf.nn, name) for name in ("rotary", "fold")}
    return {
        name: f
        for name, f in found.items()
        if name not in OF_NUMBERS | NOT_OF_TENSORS and not isinstance(f, type)
    }


PUBLIC = _public()
_legal: dict[str, list[Call]] = {}


def known_calls(name: str) -> list[Call]:
    """Calls of a function that are legal."""
    if name not in _legal:
        found = CALLS.get(name) or legal_calls(PUBLIC[name])
        if name in FIRST_DECIDES:
            found = [each for each in found if isinstance(each.args[0], Held)]
        _legal[name] = found
    return _legal[name]


def check(result: Any) -> None:
    """All tensors of a result are where the operands were."""
    for x in wf.tree_leaves(result):
        if isinstance(x, wf.Tensor):
            assert x.device.name == HERE
            x.host()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_function_follows_its_operands(name: str) -> None:
    found = known_calls(name)
    assert found, "no call was found: give one in tests/device_calls.py"
    for each in found:
        check(each.run(PUBLIC[name], HERE))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_function_follows_its_operands_inside_transforms(name: str) -> None:
    for each in known_calls(name)[:3]:
        function, held = each.of(PUBLIC[name]), each.held()
        tensors = [x.on(HERE) for x in held]
        for run in (graph, slope, mapped):
            if answers(run, function, [x.on("cpu:0") for x in held]):
                check(run(function, tensors))


def answers(run: Callable[..., Any], function: Any, tensors: list[wf.Tensor]) -> bool:
    """Whether a transform can run the function at all."""
    try:
        run(function, tensors)
    except DeviceMismatchError:
        raise
    except (WeftError, TypeError, AttributeError):
        return False
    return True


def graph(function: Any, tensors: list[wf.Tensor]) -> Any:
    trace = wf.trace(lambda *xs: wf.tree_leaves(function(*xs)), *tensors)
    assert {node.device for node, _ in trace.outputs} == {x.device for x in tensors}
    return trace.replay(*tensors)


def slope(function: Any, tensors: list[wf.Tensor]) -> Any:
    places = tuple(i for i, x in enumerate(tensors) if _is_float(x))

    def total(*xs: wf.Tensor) -> Any:
        floats = filter(_is_float, wf.tree_leaves(function(*xs)))
        return sum(wf.sum(wf.astype(x, wf.float32)) for x in floats)

    return wf.value_and_grad(total, places)(*tensors)


def _is_float(x: wf.Tensor) -> bool:
    return wf.isdtype(x.dtype, "real floating")


def pushed(function: Any, tensors: list[wf.Tensor]) -> Any:
    if not all(map(_is_float, tensors)):
        return None
    return wf.jvp(function, tensors, [np.ones(x.shape, x.dtype) for x in tensors])


def mapped(function: Any, tensors: list[wf.Tensor]) -> Any:
    return wf.vmap(function)(*(wf.stack([x, x]) for x in tensors))


OPERATIONS = [
    pytest.param(op, example, id=f"{op}-{number}")
    for op in OPS.values()
    for number, example in enumerate(calls(op))
    if "device" not in example.params
]


@pytest.mark.parametrize(("op", "example"), OPERATIONS)
def test_rules_of_an_op_follow_its_operands(op: Operation, example: Any) -> None:
    arrays = operands(op, example, np.random.default_rng(0))
    tensors = [wf.tensor(x, device=HERE) for x in arrays]

    def function(*xs: wf.Tensor) -> Any:
        return call(op, xs, example.params)

    check(function(*tensors))
    check(mapped(function, tensors))
    held = [x.to_device("cpu:0") for x in tensors]
    for run in (slope, pushed):
        if answers(run, function, held):
            check(run(function, tensors))


COMPILED = (
    "median quantile interp gradient histogram cross_entropy polyval cov ediff1d polyfit linalg.cg"
    " take_along_axis roots".split()
)


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_function_follows_its_operands(name: str) -> None:
    each = known_calls(name)[0]
    run = wf.compile(each.of(PUBLIC[name]))
    for _ in range(2):
        check(run(*(x.on(HERE) for x in each.held())))


def x_of(*shape: int) -> wf.Tensor:
    values = np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32)
    return wf.tensor(values.reshape(shape), device=HERE)


KEY = wf.random.key(0, device=HERE)
EYE = np.eye(6, dtype=bool)
LAYERS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: wf.nn.Linear(3, 4, key=KEY)(x_of(2, 3)),
    "MLP": lambda: wf.nn.MLP(3, 8, 4, key=KEY)(x_of(2, 3)),
    "Conv2d": lambda: wf.nn.Conv2d(3, 4, 2, key=KEY)(x_of(1, 3, 4, 4)),
    "ConvTranspose2d": lambda: wf.nn.ConvTranspose2d(3, 4, 2, key=KEY)(x_of(1, 3, 4, 4)),
    "Embedding": lambda: wf.nn.Embedding(5, 3, key=KEY)([0, 2, 4]),
    "Dropout": lambda: wf.nn.Dropout(0.5)(x_of(2, 3), key=KEY),
    "RNN": lambda: wf.nn.RNN(3, 4, key=KEY)(x_of(2, 5, 3)),
    "GRU": lambda: wf.nn.GRU(3, 4, key=KEY)(x_of(2, 5, 3)),
    "LSTM": lambda: wf.nn.LSTM(3, 4, key=KEY)(x_of(2, 5, 3)),
    "lengths": lambda: wf.nn.LSTM(3, 4, key=KEY)(x_of(2, 5, 3), lengths=[3, 5]),
    "state": lambda: wf.nn.GRU(3, 4, key=KEY)(x_of(2, 5, 3), np.zeros((1, 2, 4), np.float32)),
    "MultiHeadAttention": lambda: wf.nn.MultiHeadAttention(8, 2, key=KEY)(
        x_of(1, 6, 8), mask=EYE.tolist()
    ),
    "TransformerEncoderLayer": lambda: wf.nn.TransformerEncoderLayer(8, 2, key=KEY)(
        x_of(1, 6, 8), is_causal=True, key=KEY
    ),
    "TransformerDecoderLayer": lambda: wf.nn.TransformerDecoderLayer(8, 2, key=KEY)(
        x_of(1, 6, 8), x_of(1, 6, 8), key=KEY
    ),
    "PReLU": lambda: wf.nn.prelu(x_of(2, 3), 0.2),
    "lora": lambda: wf.nn.lora(wf.nn.Linear(3, 4, key=KEY), 2, key=KEY)(x_of(2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_where_its_key_is(name: str) -> None:
    check(LAYERS[name]())


def test_what_is_joined_in_brackets_is_where_its_tensors_are() -> None:
    check([wf.r_[0:3, x_of(3), 0:1:4j, [1.0], 2], wf.c_[0:3, x_of(3), [1.0, 2.0, 3.0]]])


def test_a_cache_is_where_the_layer_is() -> None:
    layer = wf.nn.MultiHeadAttention(8, 2, key=KEY, rope=10_000.0)
    check(layer.decode(x_of(1, 2, 8), layer.cache(1, capacity=4)))


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm", "InstanceNorm"])
def test_a_layer_without_a_key_is_on_the_default_device(name: str) -> None:
    sizes = (1, 3) if name == "GroupNorm" else (3,)
    for x in wf.tree_leaves(getattr(wf.nn, name)(*sizes)):
        assert x.device.name == "cpu:0"


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    name: lambda name=name: getattr(wf.optim, name)(0.1)
    for name in (
        "adadelta adafactor adagrad adam adamax adamw lamb lion muon nadam radam rmsprop"
        " sgd".split()
    )
} | {
    "schedule": lambda: wf.optim.sgd(wf.optim.schedules.cosine(0.1, 10)),
    "lbfgs": wf.optim.lbfgs,
    "accumulate": lambda: wf.optim.accumulate(wf.optim.adam(0.1), 2),
    "loss_scaled": lambda: wf.optim.loss_scaled(wf.optim.adam(0.1)),
    "reduce_on_plateau": lambda: wf.optim.reduce_on_plateau(wf.optim.adam(0.1)),
    "clip": lambda: wf.optim.chain(wf.optim.clip_by_global_norm(1.0), wf.optim.adam(0.1)),
    "no decay": lambda: wf.optim.scale_by_adam(0.0, 0.0),
    "add_momentum": lambda: wf.optim.add_momentum(0.9, nesterov=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_where_the_parameters_are(name: str) -> None:
    transform = OPTIMIZERS[name]()
    params = {"w": x_of(3, 3), "b": x_of(3)}
    state = transform.init(params)
    for _ in range(2):
        gradients = wf.tree_map(lambda p: p * 2, params)
        updates, state = transform.update(gradients, state, params)
        check((updates, state))
        params = wf.optim.apply(params, updates)
    check(params)


def test_a_search_and_a_mean_are_where_they_start() -> None:
    check(wf.optim.minimize(lambda x: wf.sum((x - 0.5) ** 2), x_of(3)))
    mean = wf.optim.ema(0.9, warmup=True)
    check(mean.update(x_of(3), mean.init(x_of(3))))


MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "add": wf.add,
    "where": lambda x, y: wf.where(x > 0, x, y),
    "a list": lambda x, y: wf.add([x, x], [y, y]),
    "a list beside": lambda x, y: wf.stack([x, y]),
    "quantile": lambda x, y: wf.quantile(x, y),
    "cross_entropy": lambda x, y: wf.cross_entropy(x, y),
    "histogram": lambda x, y: wf.histogram(x, y),
    "interp": lambda x, y: wf.interp(x, x, y),
    "polyadd": wf.polyadd,
    "prelu": wf.prelu,
    "ediff1d": lambda x, y: wf.ediff1d(x, y),
    "sum": lambda x, y: wf.sum(x, where=y > 0),
    "take": lambda x, y: wf.take(x, wf.astype(y, "int64")),
    "setitem": lambda x, y: wf.index_update(x, 0, [y[0]], "set"),
    "key": lambda x, y: wf.dropout(x, 0.5, wf.random.key(0)),
    "select": lambda x, y: wf.select([x > 0], [y], 0.0),
}


@pytest.mark.parametrize("name", MIXED)
def test_two_tensors_on_two_devices_are_a_mistake(name: str) -> None:
    with pytest.raises(DeviceMismatchError, match="cpu:0"):
        MIXED[name](x_of(3), x_of(3).to_device("cpu:0"))


@pytest.mark.parametrize("name", sorted(OF_NUMBERS & set(FUNCTIONS)))
def test_a_function_of_no_tensor_uses_the_default_device(name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "fromiter": ([1.0, 2.0], float),
        "fromfunction": (lambda i: i, (3,)),
        "frombuffer": (bytes(8),),
        "from_numpy": (np.ones(3),),
        "diag_indices": (3,),
    }
    with wf.default_device(HERE):
        check(FUNCTIONS[name](*arguments.get(name, (3,))))
