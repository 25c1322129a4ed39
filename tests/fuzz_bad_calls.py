"""Call every public function with random arguments, good and bad, and list what goes wrong.

A call may answer, or raise an error of weft's; it may not raise anything else, warn, hang, or break
the call after it. Each call follows from the seed and its number alone, so one line of the report
is enough to repeat it:

    python tests/fuzz_bad_calls.py --calls 1000000 --seed 7
    python tests/fuzz_bad_calls.py --seed 7 --only 4711
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import copy
import functools
import inspect
import io
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft as wf
from weft.core.common import dtypes
from weft.errors import WeftError

SECONDS = 5.0
LARGE = 10**6  # elements; results beyond are legal, but computing them says nothing about errors

# What blocks or never ends by nature, changes the process for good, writes files of any name, or is
# not made by calling it.
SKIPPED = {
    "AxisSpec",
    "PyTreeDef",
    "breakpoint",
    "fori_loop",
    "register_runtime",
    "register_tree",
    "visualize",
    "visualize_sharding",
    "while_loop",
}

PYTHONS_COMPLAINT = re.compile(
    r"missing \d+ required|positional argument|unexpected keyword|multiple values|takes no arg"
    r"|expected at most"
    r"|\(\) argument must be|object is not iterable"  # `float` or `tuple` given as the function
)


class TooSlowError(BaseException):
    """The call ran past its time; no handler of `Exception` may swallow this."""


def first(*args: Any, **keywords: Any) -> Any:
    return args[0] if args else wf.ones(2)


def total(*args: Any, **keywords: Any) -> Any:
    return sum((wf.sin(x).sum() for x in args if isinstance(x, wf.Tensor)), wf.zeros(()))


def mean_of(*args: Any, **keywords: Any) -> Any:
    return wf.mean(args[0]) if args else 1.0


def pair(*args: Any, **keywords: Any) -> Any:
    return first(*args), first(*args)


def everything(*args: Any, **keywords: Any) -> Any:
    return args


def nothing(*args: Any, **keywords: Any) -> None:
    return None


def wrong_answer(*args: Any, **keywords: Any) -> Any:
    return "text"


def is_true(*args: Any, **keywords: Any) -> Any:
    return wf.tensor(True)


FUNCTIONS = (first, total, mean_of, pair, everything, nothing, wrong_answer, is_true)
NAN, INF = float("nan"), float("inf")
HUGE = (10**30, -(10**30), 2**62, -(2**62), 2**63, 2**64, 2**40, 10**400)
ODD: tuple[Any, ...] = (
    None, "x", "", "é\n", b"x", object(), [], (), {}, {"a": 1}, {1, 2}, [[1], [2, 3]], [[[]]], -1,
    0, 1, 2, 7, -100, 1.5, -0.5, 0.0, NAN, INF, -INF, 1e308, 1e-320, 1j, complex(NAN, INF), True,
    False, (0, 0), (-1, -1), (5,), [0, 1], (2, 3), (3, 2), (-1,), (1, None), ("a", 1), [None],
    (1.5, 2), (2**40, 2**40), (2**62, 0), [True, False], [NAN, 1.0], (1, (2, 3)), ..., slice(None),
    slice(5, 1, -1), slice(None, None, 0), slice("a"), NotImplemented, range(3), iter(()),
    np.float64(2), np.int8(3), np.bool_(True), np.str_("x"),
    np.float32(NAN), np.uint64(2**63), np.datetime64(1, "s"), np.ones(3), np.ones((2, 2), bool),
    np.array("a"), np.array([2**63], np.uint64), np.array([None, 1], object), np.array(None),
    np.zeros((0, 3)), np.ones((2, 3))[::-1], np.array([1, 2], ">f8"), np.ma.masked_array([1, 2]),
    np.array([(1, 2.0)], "i4,f4"), np.array(["2020"], "M8[Y]"), np.ones(2, np.longdouble),
    "float32", "float8_e4m3", "int32", "complex64", "bool", "float128", "object", "cpu:1", "cpu:99",
    "cuda", "cpu:-1", "cpu:" + "9" * 30, wf.float32, np.dtype("V3"), np.dtype(object),
    "ij,jk->ik", "...", "->", "sum", "mean", "same", "valid", "reflect", "ortho", "fro", "linear",
    "i", memoryview(b"\1\2"), bytearray(8), ValueError("x"), *HUGE, *FUNCTIONS,
)  # fmt: skip
AXES = (0, 1, -1, -2, 2, 5, None, (0, 1), (-1,), (0, 0), [1], True, 1.0, "0", -100)
SHAPES = ((2, 3), (3,), (), 4, (1, 2, 2), (0, 2), [2], (2, -1), 0, -1, 1.5, (2.0,), None, 2**40)
PLAUSIBLE: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (r"^(f|fun|func|function|body.*|.*_fun|.*_function|fn|branches|forward|rule)$", FUNCTIONS),
    (r"ax[ei]s|dim", AXES),
    (r"shape|size|window|kernel|sections|repeats|stride|padding|dilation|pad_width", SHAPES),
    (r"dtype", (*dtypes.ALL_DTYPES, None, float, int, "float16", "nope")),
    (r"device", ("cpu", "cpu:0", "cpu:1", None)),
    (r"^(num.*|n|k|m|count|order|offset|length|groups|bins|decimals|start|stop|step|index)$",
     (0, 1, 2, 3, -1, 5, None, 2.0)),
    (r"key", tuple(wf.random.key(seed) for seed in range(3))),
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A public callable and its parameters, read once."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]


@functools.cache
def targets() -> tuple[Target, ...]:
    """Every public callable of weft and its namespaces."""
    found = []
    for prefix, module in (
        ("wf", wf),
        ("wf.linalg", wf.linalg),
        ("wf.fft", wf.fft),
        ("wf.random", wf.random),
    ):
        names = getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"]
        for name in sorted(names):
            function = getattr(module, name)
            if callable(function) and name not in SKIPPED:
                parameters = tuple(inspect.signature(function).parameters.values())
                found.append(Target(f"{prefix}.{name}", function, parameters))
    return tuple(found)


def draw_tensor(rng: np.random.Generator) -> wf.Tensor:
    dtype = dtypes.float32
    if rng.random() < 0.6:
        dtype = dtypes.ALL_DTYPES[rng.integers(len(dtypes.ALL_DTYPES))]
    shape = tuple(int(n) for n in rng.integers(0, 4, rng.integers(0, 5)))
    if rng.random() < 0.5:
        shape = ((2, 3), (3, 3), (3,), (2, 3, 3))[rng.integers(4)]
    device = "cpu:1" if rng.random() < 0.05 else "cpu:0"
    made = wf.tensor(rng.integers(0, 5, shape), device=device).astype(dtype)
    if rng.random() < 0.1 and dtypes.is_floating(dtype) and made.dtype.itemsize > 1:
        made = made * NAN
    return made


def draw_good(rng: np.random.Generator, parameter: inspect.Parameter) -> Any:
    """A value such as this parameter takes, as far as its name and its default tell."""
    for pattern, values in PLAUSIBLE:
        if re.search(pattern, parameter.name):
            return values[rng.integers(len(values))]
    if parameter.default is not parameter.empty and parameter.default is not None:
        return parameter.default
    return draw_tensor(rng) if rng.random() < 0.6 else wf.ones((3, 3))


def draw_any(rng: np.random.Generator) -> Any:
    chance = rng.random()
    if chance < 0.3:
        return draw_tensor(rng)
    if chance < 0.4:
        return [draw_tensor(rng) for _ in range(rng.integers(0, 4))]
    if chance < 0.42:
        return {"a": draw_tensor(rng), "b": (draw_any(rng),)}
    value = ODD[rng.integers(len(ODD))]
    return copy.copy(value) if isinstance(value, list) else value  # a call may append to a list


def draw_arguments(
    rng: np.random.Generator, parameters: tuple[inspect.Parameter, ...]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of which about one is bad: with more, the first alone would be looked at."""
    args: list[Any] = []
    keywords: dict[str, Any] = {}
    badness = (0.2, 0.2, 0.5, 0.9)[rng.integers(4)]
    for each in parameters:
        is_optional = each.default is not each.empty
        if is_optional and rng.random() < 0.6:
            continue
        value = draw_any(rng) if rng.random() < badness else draw_good(rng, each)
        if each.kind is each.VAR_POSITIONAL:
            args.extend([value, *(draw_any(rng) for _ in range(rng.integers(0, 2)))])
        elif each.kind is each.VAR_KEYWORD:
            if rng.random() < 0.1:
                keywords["surplus"] = value
        elif each.kind is each.POSITIONAL_ONLY or not (
            is_optional or each.kind is each.KEYWORD_ONLY
        ):
            args.append(value)
        else:
            keywords[each.name] = value
    return args, keywords


def show(value: Any) -> str:
    """A value as one reads it in a report; a tensor's values are left out."""
    if isinstance(value, wf.Tensor):
        return f"Tensor({value.shape}, {value.dtype}, {value.device})"
    if isinstance(value, np.ndarray):
        return f"ndarray({value.shape}, {value.dtype})"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(show, value))}]"
    if type(value) is int and value.bit_length() > 256:
        return f"int of {value.bit_length()} bits"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {show(item)}' for name, item in value.items())}}}"
    return getattr(value, "__name__", None) or f"{value!r:.60}"


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TooSlowError(f"ran longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def attempt(target: Target, args: list[Any], keywords: dict[str, Any], more: list[Any]) -> None:
    """One call; functions that it gives back are called in turn."""
    result = target.function(*args, **keywords)
    if callable(result) and not isinstance(result, wf.Tensor | type):
        result = result(*more)
    leaves = [x for x in wf.tree_leaves(result) if isinstance(x, wf.Tensor)]
    wf.realize(*(x for x in leaves if x.size < LARGE))


def is_call_mistake(error: BaseException) -> bool:
    """Whether Python itself refused the number or the names of the arguments."""
    return type(error) is TypeError and PYTHONS_COMPLAINT.search(str(error)) is not None


def where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "weft" in f.filename]
    return f"{frames[-1].filename.rpartition('weft/')[2]}:{frames[-1].lineno}" if frames else "?"


def complaint(target: Target, args: list[Any], keywords: dict[str, Any], more: list[Any]) -> str:
    """What is wrong with the answer to this call; empty where all is well."""
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            attempt(target, args, keywords, more)
    except WeftError as error:
        if not str(error).strip():
            return "an error without a message"
    except (Exception, TooSlowError) as error:
        if not is_call_mistake(error):
            return f"{where(error)}: {type(error).__name__}: {str(error)[:200]}"
    try:
        if wf.ones(2).sum().item() != 2:
            return "afterwards, 1 + 1 is not 2"
    except Exception as error:
        return f"afterwards, ones(2).sum(): {type(error).__name__}: {error}"
    return ""


def check_call(seed: int, number: int) -> str:
    """The report of call `number`, empty where all is well."""
    rng = np.random.default_rng((seed, number))
    target = targets()[rng.integers(len(targets()))]
    args, keywords = draw_arguments(rng, target.parameters)
    more = [draw_any(rng) for _ in range(rng.integers(0, 3))]
    # What a call sets for the calls after it (default dtype, device) ends with the context.
    with contextlib.redirect_stdout(io.StringIO()):
        found = contextvars.copy_context().run(complaint, target, args, keywords, more)
    if not found:
        return ""
    given = [*map(show, args), *(f"{name}={show(value)}" for name, value in keywords.items())]
    given = [*given, *(f"then {show(value)}" for value in more)]
    return f"{number}: {target.name}({', '.join(given)}): {found}".replace("\n", " ")


def hammer(seed: int, count: int, start: int = 0) -> list[str]:
    """The reports of `count` calls that did not go well."""
    return [found for n in range(start, start + count) if (found := check_call(seed, n))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Call everything with random arguments.")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat the call of this number, with its error")
    options = parser.parse_args()
    if options.only is not None:
        print(check_call(options.seed, options.only) or "all is well")
        return 0
    wrong = 0
    for number in range(options.start, options.start + options.calls):
        found = check_call(options.seed, number)
        if found:
            wrong += 1
            print(found, flush=True)
    print(f"seed {options.seed}: {options.calls} calls, {wrong} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
