"""Recurrent layers: cells that map (input, state) to a state, and `scan` over sequences.

Sequences are (…, length, features). The input's part of all gates is one product for the whole
sequence; only the state's part runs step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import weft as wf
from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_flag, shown
from weft.core.common.trees import tree_leaves, tree_map, tree_structure
from weft.core.tensor.convert import to_tensor
from weft.errors import ArgumentError, ShapeError, TreeError
from weft.nn.basic import Dropout, affine
from weft.nn.inputs import features_last, given_to, keys_of, sizes, uniform_within
from weft.nn.module import Module, static


class _Cell(Module):
    """What cells share: two weights, two biases, torch's names and order of gates."""

    weight_ih: wf.Tensor
    weight_hh: wf.Tensor
    bias_ih: wf.Tensor | None
    bias_hh: wf.Tensor | None

    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        key: wf.Tensor,
        dtype: Any = None,
    ) -> None:
        kind = type(self).__name__
        inputs, hidden = sizes(kind, input_size=input_size, hidden_size=hidden_size)
        drawn, rows = uniform_within(hidden**-0.5), self.gates * hidden
        k1, k2, k3, k4 = keys_of(key, 4)
        self.weight_ih = drawn(k1, (rows, inputs), dtype)
        self.weight_hh = drawn(k2, (rows, hidden), dtype)
        shifted = as_flag(kind, "bias", bias)
        self.bias_ih = drawn(k3, (rows,), dtype) if shifted else None
        self.bias_hh = drawn(k4, (rows,), dtype) if shifted else None

    @property
    def input_size(self) -> int:
        """How many features an input has."""
        return self.weight_ih.shape[-1]

    @property
    def hidden_size(self) -> int:
        """How many features a state has."""
        return self.weight_hh.shape[-1]

    def initial(self, batch: tuple[int, ...] = ()) -> Any:
        """The state of zeros."""
        shape = (*batch, self.hidden_size)
        return wf.zeros(shape, dtype=self.weight_hh.dtype, device=self.weight_hh.device)

    def projected(self, x: Any) -> wf.Tensor:
        """The input's part of the gates."""
        x = features_last(self, "x", x, self.input_size)
        return affine(x, self.weight_ih, self.bias_ih)

    def __call__(self, x: Any, state: Any = None) -> Any:
        """The state after input `x` (…, input_size)."""
        ahead = self.projected(x)
        return self.step(ahead, self.initial(ahead.shape[:-1]) if state is None else state)

    def step(self, ahead: Any, state: Any) -> Any:
        """The next state, given the input's part of the gates."""
        raise NotImplementedError

    def _parts(self, ahead: Any, hidden: Any) -> tuple[list[Any], list[Any]]:
        """The gates' parts from the input and from the state."""
        behind = affine(hidden, self.weight_hh, self.bias_hh)
        size = self.hidden_size
        cuts = [slice(i * size, (i + 1) * size) for i in range(self.gates)]
        return [ahead[..., cut] for cut in cuts], [behind[..., cut] for cut in cuts]


class RNNCell(_Cell):
    """h' = tanh(W x + b + U h + c), or relu instead of tanh."""

    nonlinearity: str = static()

    gates: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        key: wf.Tensor,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, key=key, dtype=dtype)
        kinds = ("tanh", "relu")
        self.nonlinearity = as_choice("RNNCell", "nonlinearity", nonlinearity, kinds)

    def step(self, ahead: Any, state: Any) -> wf.Tensor:
        """The next state, given the input's part."""
        function: Callable[[Any], wf.Tensor] = wf.tanh if self.nonlinearity == "tanh" else wf.relu
        return function(ahead + affine(state, self.weight_hh, self.bias_hh))


class GRUCell(_Cell):
    """A state that a reset and an update gate keep or renew; gates are (reset, update, new)."""

    gates: ClassVar[int] = 3

    def step(self, ahead: Any, state: Any) -> wf.Tensor:
        """The next state, given the input's part of the gates."""
        (xr, xz, xn), (hr, hz, hn) = self._parts(ahead, state)
        keep: Any = wf.sigmoid(xz + hz)
        new: Any = wf.tanh(xn + wf.sigmoid(xr + hr) * hn)
        made: wf.Tensor = new + keep * (state - new)
        return made


class LSTMCell(_Cell):
    """A pair (hidden, memory) ruled by the gates (input, forget, new, output)."""

    gates: ClassVar[int] = 4

    def initial(self, batch: tuple[int, ...] = ()) -> Any:
        """The pair of zeros."""
        return super().initial(batch), super().initial(batch)

    def step(self, ahead: Any, state: Any) -> tuple[wf.Tensor, wf.Tensor]:
        """The next pair, given the input's part of the gates."""
        if not isinstance(state, tuple) or len(state) != 2:
            raise ArgumentError("LSTMCell: state: expected a pair (hidden, memory)")
        hidden, memory = state
        from_x, from_h = self._parts(ahead, hidden)
        i, f, g, o = (a + b for a, b in zip(from_x, from_h, strict=True))
        memory = wf.sigmoid(f) * memory + wf.sigmoid(i) * wf.tanh(g)
        out: Any = wf.sigmoid(o)
        return out * wf.tanh(memory), memory


class _Recurrent(Module):
    """Layers of cells over a sequence, in one or both directions."""

    cells: tuple[Any, ...]
    dropout: Dropout
    bidirectional: bool = static()

    cell: ClassVar[type[_Cell]]

    def _make(
        self, widths: tuple[int, int, int], flags: dict[str, Any], dropout: float, keywords: Any
    ) -> None:
        kind = type(self).__name__
        names = ("input_size", "hidden_size", "num_layers")
        inputs, hidden, layers = sizes(kind, **dict(zip(names, widths, strict=True)))
        self.bidirectional = as_flag(kind, "bidirectional", flags.pop("bidirectional"))
        if not as_flag(kind, "batch_first", flags.pop("batch_first")):
            raise ArgumentError(
                f"{kind}: batch_first=False: sequences are (…, length, features)"
                "\nhint: wf.swapaxes(x, 0, 1) of (length, batch, features), and of the outputs"
            )
        ways = 2 if self.bidirectional else 1
        keys = keys_of(keywords.pop("key"), layers * ways)
        first = [inputs] * ways + [hidden * ways] * (layers - 1) * ways
        self.cells = tuple(
            self.cell(n, hidden, **flags, **keywords, key=own)
            for n, own in zip(first, keys, strict=True)
        )
        self.dropout = Dropout(dropout)

    def __call__(
        self, x: Any, state: Any = None, *, lengths: Any = None, key: Any = None
    ) -> tuple[wf.Tensor, Any]:
        """Outputs (…, length, features) of the last layer, and the last state of every cell.

        The state, given or returned, is (cells, …, hidden_size), cells ordered by layer and then
        direction; for `LSTM` it is a pair of such tensors. `lengths` (…) say how much of each
        sequence counts: what follows has outputs of 0 and changes no state.
        """
        x = features_last(self, "x", x, self.cells[0].input_size)
        if x.ndim < 2:
            wanted = f"(…, length, {x.shape[-1]})"
            raise ShapeError(f"{type(self).__name__}: x: expected shape {wanted}, got {x.shape}")
        alive = None
        if lengths is not None:
            seen = self._seen(lengths, x)
            x = wf.where(seen, x, 0)  # what follows may be anything, and has no slope
            alive = wf.moveaxis(seen, -2, 0)
        ways = 2 if self.bidirectional else 1
        ends: list[Any] = []
        for start in range(0, len(self.cells), ways):
            if start:
                x = self.dropout(x, key=None if key is None else wf.random.fold_in(key, start))
            runs = [
                self._run(number, x, state, alive, reverse=number > start)
                for number in range(start, start + ways)
            ]
            x = runs[0][0] if ways == 1 else wf.concat([out for out, _ in runs], axis=-1)
            ends += [end for _, end in runs]
        return x, tree_map(lambda *rows: wf.stack(rows), *ends)

    def _seen(self, lengths: Any, x: Any) -> Any:
        """Which steps (…, length, 1) count."""
        kind = type(self).__name__
        given = to_tensor(lengths, op=f"{kind}: lengths", like=x.device)
        if given.shape != x.shape[:-2] or not dtypes.is_integer(given.dtype):
            raise ShapeError(
                f"{kind}: lengths: expected integers of shape {x.shape[:-2]}, got"
                f" {dtypes.name_of(given.dtype)} of shape {given.shape}"
            )
        steps = wf.arange(x.shape[-2], dtype=wf.int64, device=x.device)
        seen: Any = steps < wf.expand_dims(wf.astype(given, wf.int64), -1)
        return wf.expand_dims(seen, -1)

    def _run(self, number: int, x: Any, state: Any, alive: Any, reverse: bool) -> tuple[Any, Any]:
        """One cell along the sequence."""
        cell = self.cells[number]
        ahead = wf.moveaxis(cell.projected(x), -2, 0)
        if state is None:
            start = cell.initial(x.shape[:-2])
        else:
            self._check_kind(state, cell)
            start = tree_map(lambda t: self._row(t, number, x.shape[:-2]), state)
        dtype = wf.result_type(ahead, *tree_leaves(start))
        start = tree_map(lambda t: wf.astype(t, dtype), start)

        def step(carry: Any, now: Any) -> Any:
            row, live = now
            new = cell.step(row, carry)
            out = new[0] if isinstance(new, tuple) else new
            if live is None:
                return new, out
            return tree_map(lambda n, c: wf.where(live, n, c), new, carry), wf.where(live, out, 0)

        end, outputs = wf.scan(step, start, (ahead, alive), reverse=reverse)
        return wf.moveaxis(outputs, 0, -2), end

    def _check_kind(self, state: Any, cell: _Cell) -> None:
        """Refuse a state that is not made as the cell's own: one tensor, or a pair of them."""
        if tree_structure(state) != tree_structure(cell.initial()):
            wanted = "a pair (hidden, memory)" if self.cell is LSTMCell else "one tensor"
            raise TreeError(f"{type(self).__name__}: state: expected {wanted}, got {shown(state)}")

    def _row(self, given: Any, number: int, batch: tuple[int, ...]) -> Any:
        state = given_to(self, given)
        expected = (len(self.cells), *batch, self.cells[0].hidden_size)
        if state.shape != expected:
            raise ShapeError(
                f"{type(self).__name__}: state: expected shape {expected}, got {state.shape}"
                "\nhint: one row for each layer and direction"
            )
        return state[number]

    def state_name(self, name: str) -> str:
        """Cells are called as in torch: `weight_ih_l0`, `weight_ih_l0_reverse`."""
        parts = name.split(".")
        if len(parts) != 3 or parts[0] != "cells":
            return name
        layer, way = divmod(int(parts[1]), 2 if self.bidirectional else 1)
        return f"{parts[2]}_l{layer}{'_reverse' if way else ''}"


class RNN(_Recurrent):
    """`RNNCell`s over a sequence (…, length, input_size)."""

    cell: ClassVar[type[_Cell]] = RNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        key: wf.Tensor,
        batch_first: bool = True,
        dtype: Any = None,
    ) -> None:
        flags = {
            "nonlinearity": nonlinearity,
            "bias": bias,
            "bidirectional": bidirectional,
            "batch_first": batch_first,
        }
        widths = (input_size, hidden_size, num_layers)
        self._make(widths, flags, dropout, {"key": key, "dtype": dtype})


class _Gated(_Recurrent):
    """Layers of cells without a choice of nonlinearity."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        key: wf.Tensor,
        batch_first: bool = True,
        dtype: Any = None,
    ) -> None:
        flags = {"bias": bias, "bidirectional": bidirectional, "batch_first": batch_first}
        widths = (input_size, hidden_size, num_layers)
        self._make(widths, flags, dropout, {"key": key, "dtype": dtype})


class GRU(_Gated):
    """`GRUCell`s over a sequence (…, length, input_size)."""

    cell: ClassVar[type[_Cell]] = GRUCell


class LSTM(_Gated):
    """`LSTMCell`s over a sequence (…, length, input_size)."""

    cell: ClassVar[type[_Cell]] = LSTMCell
