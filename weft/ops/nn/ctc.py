"""Connectionist temporal classification: the loss of labels whose places in time are not known.

The probability of a row of labels is the sum over all ways to spread it over the time steps, with
blanks between; it is summed forward in time (Graves et al. 2006), in logarithms.
"""

from __future__ import annotations

from typing import Any

from weft.core.common import dtypes
from weft.core.common.device import Device
from weft.core.common.parameters import as_flag, as_integer
from weft.core.common.slots import public
from weft.core.tensor.convert import known, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError
from weft.ops.base import call
from weft.ops.control.loops import scan
from weft.ops.creation import arange, full, zeros
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.bitwise import logical_and
from weft.ops.elementwise.comparison import equal, less, maximum, not_equal
from weft.ops.elementwise.elementary import logaddexp
from weft.ops.families import cast
from weft.ops.gather import gather_op, gathered
from weft.ops.nn.loss import reduced
from weft.ops.norms import inexact
from weft.ops.order import cumsum, take_along_axis
from weft.ops.view.join import concat, stack
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import narrow

_NEVER = -1e30  # the logarithm of a probability of 0: finite, so that its derivatives are


@public
def ctc_loss(
    log_probs: Any,
    /,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """How unlikely rows of labels are, wherever in time they stand.

    `log_probs` (T, N, C) are logarithms of probabilities, as `log_softmax` gives them; `targets`
    (N, S) are labels other than `blank`, filled up with any, or the labels of all rows behind each
    other. `input_lengths` (N) and `target_lengths` (N) say how much of each row counts; without
    them, all of it. "mean" divides each loss by its number of labels first. Labels that do not fit
    the time have an infinite loss, or none with `zero_infinity`.
    """
    scores, labels, ends, counts = _checked(log_probs, targets, input_lengths, target_lengths)
    empty = as_integer("ctc_loss", "blank", blank, 0, scores.shape[2] - 1)
    always = as_flag("ctc_loss", "zero_infinity", zero_infinity)
    (steps, batch, _), place = scores.shape, scores.device
    # Blanks and labels in turn: a path stays, goes on, or leaves a blank between two labels out.
    blanks = full(labels.shape, empty, dtype=labels.dtype, device=place)
    own = less(arange(labels.shape[1], device=place), expand_dims(counts, -1))
    labels = where(own, labels, blanks)  # what fills a row up need not be a label
    pairs = reshape(stack([blanks, labels], axis=-1), (batch, -1))
    states = concat([pairs, full((batch, 1), empty, dtype=labels.dtype, device=place)], axis=1)
    leaps = _leaps(states, empty)
    params = {"indexed": 1, "rest": 0, "picks": 1, "mode": "ctc_loss: targets"}
    seen = call(gather_op, (scores, expand_dims(states, -1)), params)
    first = less(arange(states.shape[1], device=place), 2)
    start = full(states.shape, _NEVER, dtype=scores.dtype, device=place)

    def step(paths: Any, now: Any) -> Any:
        emitted, t = now
        from_before = logaddexp(paths, _shifted(paths, 1))
        from_far = where(leaps, _shifted(paths, 2), _NEVER)
        going = where(equal(t, 0), where(first, 0.0, _NEVER), logaddexp(from_before, from_far))
        lives = expand_dims(less(t, ends), -1)
        return where(lives, maximum(going + emitted, _NEVER), paths), None

    paths, _ = scan(step, start, (seen, arange(steps, device=place)))
    last = expand_dims(2 * counts, -1)
    whole = take_along_axis(paths, last, axis=1)
    ending = where(equal(last, 0), _NEVER, take_along_axis(paths, maximum(last - 1, 0), axis=1))
    found: Any = -reshape(logaddexp(whole, ending), (batch,))
    found = where(logical_and(equal(ends, 0), equal(counts, 0)), 0.0, found)
    never = less(-_NEVER / 2, found)
    losses = where(never, 0.0 if always else float("inf"), found)
    if reduction == "mean":
        losses = losses / cast(maximum(counts, 1), losses.dtype)
    return cast(reduced("ctc_loss", losses, reduction), inexact("ctc_loss", log_probs).dtype)


def _leaps(states: Tensor, blank: int) -> Tensor:
    """Where a path may come from two states before: at a label other than that one."""
    count = states.shape[1]
    if count < 3:
        return zeros(states.shape, dtype="bool", device=states.device)
    here, before = narrow(states, 1, 2, count - 2), narrow(states, 1, 0, count - 2)
    may = logical_and(not_equal(here, blank), not_equal(here, before))
    none = zeros((states.shape[0], 2), dtype="bool", device=states.device)
    return concat([none, may], axis=1)


def _shifted(paths: Tensor, by: int) -> Tensor:
    """What paths were `by` states before."""
    batch, count = paths.shape
    by = min(by, count)
    none = full((batch, by), _NEVER, dtype=paths.dtype, device=paths.device)
    return concat([none, narrow(paths, 1, 0, count - by)], axis=1)


def _checked(log_probs: Any, targets: Any, ends: Any, counts: Any) -> Any:
    """Scores of at least 32 bits, labels, and how many steps and labels of each row count."""
    scores = inexact("ctc_loss", log_probs, targets, ends, counts)
    labels = to_tensor(targets, like=scores.device, op="ctc_loss: targets")
    if dtypes.is_complex(scores.dtype) or not dtypes.is_integer(labels.dtype):
        raise DTypeError(
            f"ctc_loss: expected real log_probs and integer targets, got {scores.dtype} and"
            f" {labels.dtype}"
        )
    if scores.ndim == 3 and labels.ndim == 1 and counts is not None:
        labels = _rows(labels, counts, scores.shape[1])
    if scores.ndim != 3 or labels.ndim != 2 or labels.shape[0] != scores.shape[1]:
        raise ShapeError(
            f"ctc_loss: expected log_probs (T, N, C) and targets (N, S), got {scores.shape} and"
            f" {labels.shape}\nhint: fill rows of labels up to one length, and give target_lengths"
        )
    wide = dtypes.float32 if dtypes.is_narrow(scores.dtype) else scores.dtype
    rows = scores.shape[1]
    limits = (
        _lengths(name, value, rows, most, scores.device)
        for name, value, most in (
            ("input_lengths", ends, scores.shape[0]),
            ("target_lengths", counts, labels.shape[1]),
        )
    )
    return cast(scores, wide), cast(labels, dtypes.int64), *limits


def _rows(labels: Tensor, counts: Any, rows: int) -> Tensor:
    """Labels of rows behind each other as (rows, S): S is the longest of the counts, if known."""
    total, read = labels.shape[0], known(counts)
    own = _lengths("target_lengths", counts, rows, total, labels.device)
    if read is not None and read.sum() != total:
        raise ShapeError(f"ctc_loss: target_lengths: their sum is {read.sum()} for {total} targets")
    longest = total if read is None else int(read.max(initial=0))
    if longest == 0:
        return zeros((rows, 0), dtype=labels.dtype, device=labels.device)
    along = arange(longest, device=labels.device)
    starts = expand_dims(cumsum(own) - own, -1)
    places = where(less(along, expand_dims(own, -1)), starts + along, 0)
    return gathered(labels, expand_dims(places, -1), 1, 0, "ctc_loss: target_lengths")


def _lengths(name: str, given: Any, rows: int, most: int, device: Device) -> Tensor:
    """One length for each row, from 0 to `most`; a longer one raises where it is read."""
    if given is None:
        return full((rows,), most, dtype=dtypes.int64, device=device)
    found = to_tensor(given, like=device, op=f"ctc_loss: {name}")
    if found.shape != (rows,) or not dtypes.is_integer(found.dtype):
        raise ShapeError(
            f"ctc_loss: {name}: expected {rows} integers, got {found.dtype} of shape {found.shape}"
        )
    legal = arange(most + 1, device=device)
    places = expand_dims(cast(found, dtypes.int64), -1)
    return gathered(legal, places, 1, 0, f"ctc_loss: {name}")


__all__ = [
    "ctc_loss",
]
