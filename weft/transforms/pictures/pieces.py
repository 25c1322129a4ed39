"""Who holds what of a tensor: its pieces along two axes, and the devices of each.

Worked out from the layout alone, axis by axis, so that a mesh of thousands of devices is no more
work than what is shown of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import as_integer, as_integers, is_sequence, shown
from weft.core.common.spec import DeviceMesh, MeshAxes, P, ShardingSpec
from weft.core.common.types import Shape, TensorType
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShardingError
from weft.runtime.report import show_bytes

_terminal = LazyModule("weft.transforms.pictures.terminal")
_boxes = LazyModule("weft.transforms.pictures.boxes")
_NAME = "visualize_sharding"
_MOST_LISTED = 64  # devices that one box may name,
_LONGEST = 16  # if that takes no more characters


@dataclass(frozen=True)
class Piece:
    """A part of one axis: where it starts and ends, and where along its mesh axes it lies."""

    start: int
    end: int
    at: Mapping[str, int]

    @property
    def size(self) -> int:
        """How many positions of the axis it has."""
        return self.end - self.start


@dataclass(frozen=True)
class ShardingPicture:
    """The pieces of a tensor over a mesh; prints as text and shows as boxes in a notebook."""

    shape: Shape
    dtype: Any  # None if only a shape is known
    spec: ShardingSpec
    device: str  # where a tensor on no mesh is

    @property
    def title(self) -> str:
        """What is shown, in one line."""
        kind = "×".join(map(str, self.shape)) or "scalar"
        if self.dtype is not None:
            kind = str(TensorType(self.shape, self.dtype))
        mesh = self.spec.mesh
        return f"{kind} on {self.device}" if mesh is None else f"{kind} over {mesh}: {self.spec}"

    @property
    def axes(self) -> tuple[int | None, int | None]:
        """The axes drawn down and across: of more than two, the first two that are split."""
        rank = len(self.shape)
        if rank < 2:
            return None, (0 if rank else None)
        split = [axis for axis in range(rank) if self.spec.axes[axis]]
        rest = [axis for axis in range(rank) if axis not in split]
        down, across = sorted([*split, *rest][:2])
        return down, across

    def pieces(self, axis: int | None, most: int) -> list[Piece | None]:
        """The pieces of an axis in order; of more than `most` the first ones, None, the last."""
        count = 1 if axis is None else self.spec.parts(axis)
        if count <= most:
            return [self._piece(axis, number) for number in range(count)]
        first = [self._piece(axis, number) for number in range(most - 2)]
        return [*first, None, self._piece(axis, count - 1)]

    def _piece(self, axis: int | None, number: int) -> Piece:
        """One piece of an axis; an axis that is none has one."""
        if axis is None or self.spec.mesh is None:
            return Piece(0, 1 if axis is None else self.shape[axis], {})
        mesh, place = self.spec.mesh, dict[str, int]()
        for name in reversed(self.spec.axes[axis]):
            number, place[name] = divmod(number, mesh.axis_size(name))
        fixed = dict.fromkeys(mesh.axis_names, 0)
        start, end = self.spec.extents(self.shape, fixed | place)[axis]
        return Piece(start, end, place)

    def holders(self, *pieces: Piece) -> str:
        """The devices that hold these pieces of their axes."""
        mesh = self.spec.mesh
        if mesh is None:
            return self.device
        fixed = {name: at for piece in pieces for name, at in piece.at.items()}
        free = [name for name in mesh.axis_names if name not in fixed]
        count = prod(mesh.axis_size(name) for name in free)
        places = []
        combinations = itertools.product(*(range(mesh.axis_size(name)) for name in free))
        for at in itertools.islice(combinations, min(count, _MOST_LISTED)):
            place = fixed | dict(zip(free, at, strict=True))
            number = 0
            for name, size in zip(mesh.axis_names, mesh.shape, strict=True):
                number = number * size + place[name]
            places.append(mesh.devices[number].name)
        return devices_text(places, count)

    @property
    def notes(self) -> list[str]:
        """What boxes cannot show: sizes, copies, pending reductions, axes that are not drawn."""
        mesh = self.spec.mesh
        if mesh is None:
            return []
        local = self.spec.local_shape(self.shape)
        each = " × ".join(map(str, local)) or "one number"
        bytes_ = "" if self.dtype is None else f", {_bytes(local, self.dtype)}"
        uneven = any(size % self.spec.parts(k) for k, size in enumerate(self.shape))
        found = [f"each device holds {'at most ' if uneven else ''}{each}{bytes_}"]
        idle = mesh.ordered(set(mesh.axis_names) - set(self.spec.varying))
        if mesh.parts(idle) > 1:
            found.append(f"the same along {_named(mesh, idle)}: {mesh.parts(idle)} copies")
        for name, kind in self.spec.pending:
            terms = mesh.axis_size(name)
            found.append(f"pending {kind} along {name}: each of {terms} devices holds one term")
        for axis, names in enumerate(self.spec.axes):
            if names and axis not in self.axes:
                found.append(
                    f"axis {axis} is split along {_named(mesh, names)} as well:"
                    " devices of one box hold different parts of it"
                )
        return found

    def text(self, width: int = 80) -> str:
        """The picture as plain text of at most `width` columns."""
        made: str = _terminal.text(self, _as_width(width))
        return made

    def show(self, width: int | None = None) -> None:
        """Print the picture, with colours where the terminal has them; a notebook shows it."""
        if width is not None:
            _as_width(width)
        if not _in_notebook():
            _terminal.show(self, width)

    def page(self) -> str:
        """The picture as a page of its own, in HTML."""
        made: str = _boxes.page(self)
        return made

    def _repr_html_(self) -> str:
        made: str = _boxes.html(self)
        return made

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<sharding of {self.title}>"


def picture(x: Any, mesh: Any, spec: Any) -> ShardingPicture:
    """The picture of a tensor, or of a shape and a layout."""
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise ArgumentError(f"{_NAME}: mesh must be a DeviceMesh, got {shown(mesh)}")
    if isinstance(x, Tensor | TensorType):
        shape, dtype = x.shape, x.dtype
    else:
        shape, dtype = _as_shape(x), None
    device = x.device.name if isinstance(x, Tensor) else "one device"
    if spec is None and mesh is None and isinstance(x, Tensor):
        return ShardingPicture(shape, dtype, x.sharding, device)
    return ShardingPicture(shape, dtype, _as_spec(spec, mesh, len(shape)), device)


def _as_shape(x: Any) -> Shape:
    if not is_sequence(x) and not isinstance(x, int):
        raise ArgumentError(f"{_NAME}: expected a tensor or a shape, got {shown(x)}")
    return as_integers(_NAME, "shape", x, low=0)


def _as_spec(spec: Any, mesh: DeviceMesh | None, rank: int) -> ShardingSpec:
    if isinstance(spec, ShardingSpec):
        if len(spec.axes) != rank:
            raise ShardingError(
                f"{_NAME}: {spec} is for {len(spec.axes)} axes, the shape has {rank}"
            )
        if mesh is not None and spec.mesh not in (None, mesh):
            raise ShardingError(f"{_NAME}: spec lies on {spec.mesh}, not on {mesh}")
        return spec if mesh is None else spec.on(mesh)
    if mesh is None:
        raise ArgumentError(
            f"{_NAME}: a shape needs a mesh and a spec"
            "\nhint: wf.visualize_sharding((8, 4), mesh=mesh, spec=wf.P('x', 'y'))"
        )
    return ShardingSpec.of(mesh, P() if spec is None else spec, rank)


def _as_width(width: Any) -> int:
    return as_integer(_NAME, "width", width, low=20, high=10_000)


def _bytes(shape: Shape, dtype: Any) -> str:
    return show_bytes(TensorType(shape, dtype).nbytes)


def _named(mesh: DeviceMesh, axes: MeshAxes) -> str:
    return ", ".join(f"{axis}={mesh.axis_size(axis)}" for axis in axes)


def devices_text(names: Sequence[str], count: int) -> str:
    """Devices by kind, with dashes where numbers follow each other; of too many the first three.

    >>> devices_text(["cpu:0", "cpu:2"], 2), devices_text(["cpu:0", "cpu:1", "cpu:2", "gpu:7"], 4)
    ('cpu:0,2', 'cpu:0-2 gpu:7')
    """
    text = _listed(names)
    if count == len(names) and (len(text) <= _LONGEST or count <= 3):
        return text
    return f"{_listed(names[:3])},… ({count} devices)"


def _listed(names: Sequence[str]) -> str:
    kinds: dict[str, list[int]] = {}
    for name in names:
        kind, _, number = name.partition(":")
        kinds.setdefault(kind, []).append(int(number))
    return " ".join(f"{kind}:{_runs(numbers)}" for kind, numbers in kinds.items())


def _runs(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this, which shows the value of a cell by itself."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return getattr(shell, "kernel", None) is not None


def colour_of(row: int, column: int) -> int:
    """The number of a box's colour: neighbours differ."""
    return (5 * row + 2 * column) % 12
