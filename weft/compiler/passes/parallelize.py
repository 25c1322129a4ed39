"""Make the outermost loop one that threads can share.

Perfectly nested loops are joined until there are enough tasks, each finding its place by quotient
and remainder. A loop that will run in lanes is not joined whole but in chunks.
"""

from __future__ import annotations

from weft.compiler.lanes import Lanes, stores_fit, widest
from weft.compiler.loops import Kernel, Loop, Reduce, Value, every, integer
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    known,
    most_of,
    multiply,
    remainder,
    smaller,
    subtract,
)
from weft.compiler.rebuild import Scope, Statements, substitute

ENOUGH = 256  # tasks that every pool can share evenly,
LONG = 1 << 18  # unless one has so many points: then rows are better tasks
CHUNK = 4096  # elements of a task that computes each on its own
COLUMNS = 512  # results of a task that runs down columns
WHOLE = 1 << 15  # bytes of columns that are best walked together, as long as they leave
SOME = 8  # tasks
FEW = 64  # points that are no tasks of their own: to find their places takes longer
LEAST = 8192  # points of a kernel below which threads do not pay
_UNKNOWN = 16  # tasks that an extent known only to the caller counts for


def parallelize(kernel: Kernel, threads_wanted: bool = True) -> Kernel:
    """The kernel with a parallel loop where its work can be shared; `tasks` notes its length."""
    scope = Scope(kernel)
    if kernel.parallel is not None:
        return scope.kernel_with(kernel.body, tasks=kernel.parallel.stop)
    nest = _nest(kernel)
    if not (nest and threads_wanted) or _points(kernel.body) < LEAST:
        return scope.kernel_with(kernel.body, tasks=integer(1))
    lanes = Lanes(kernel)
    return _Sharing(scope, nest, lanes).kernel()


def _points(statements: Statements) -> float:
    """How often the innermost statements run; what only the caller knows counts as often."""
    most = 1.0
    for s in statements:
        inner = _points(s.body) if isinstance(s, Loop | Reduce) else 1.0
        if isinstance(s, Loop):
            count = most_of(s.stop)
            inner *= LEAST if count is None else count
        elif isinstance(s, Reduce):
            for _, extent in s.axes:
                inner *= known(extent) or LEAST
        most = max(most, inner)
    return most


def _nest(kernel: Kernel) -> list[Loop]:
    """Outermost loops, each the only statement of the one before, that may run in any order."""
    found: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loop = body[0]
        plain = loop.kind == "serial" and known(loop.start) == 0
        if not plain or any(hides(loop.stop, outer.variable) for outer in found):
            break
        if not stores_fit(loop.variable, loop.body):
            break
        found.append(loop)
        body = loop.body
    return found


class _Sharing:
    def __init__(self, scope: Scope, nest: list[Loop], lanes: Lanes) -> None:
        self.scope = scope
        self.nest = nest
        chosen = [lanes.runs_as_lanes(loop) for loop in nest]
        self.vector = chosen.index(True) if True in chosen else None

    def kernel(self) -> Kernel:
        """The nest as one parallel loop around the rest."""
        taken: list[tuple[Value, Value]] = []  # variables and extents, outermost first
        tasks = 1
        for k, loop in enumerate(self.nest):
            points = _points((loop,))
            enough = points < LONG if tasks >= ENOUGH else points <= FEW
            if enough or k == self.vector:
                break
            taken.append((loop.variable, loop.stop))
            tasks *= known(loop.stop) or _UNKNOWN
        body = self._rest(len(taken))
        if len(taken) == self.vector and tasks < ENOUGH:
            chunk, body = self._chunked(self.nest[self.vector], tasks)
            if chunk is not None:
                taken.append(chunk)
        if not taken:
            return self.scope.kernel_with(self.scope.kernel.body, tasks=integer(1))
        return self._joined(taken, body)

    def _rest(self, count: int) -> Statements:
        return self.nest[count - 1].body if count else self.scope.kernel.body

    def _chunked(self, loop: Loop, tasks: int) -> tuple[tuple[Value, Value] | None, Statements]:
        """A chunk variable with its extent, and the loop over one chunk."""
        size = CHUNK
        if any(isinstance(s, Loop | Reduce) for s in every(loop.body)):
            whole = WHOLE // widest(loop.variable, loop.body)
            size = whole if tasks >= SOME and (known(loop.stop) or 0) <= whole else COLUMNS
        extent = known(loop.stop)
        if extent is not None and extent <= size:
            return None, (loop,)
        chunk, inside = self.scope.variable("chunk"), self.scope.variable(loop.variable.data)
        start = multiply(chunk, size)
        stop = integer(size)
        if extent is None or extent % size:
            stop = smaller(subtract(loop.stop, start), size)
        count = divide(add(loop.stop, size - 1), size)
        body = substitute(loop.body, {loop.variable: add(start, inside)})
        return (chunk, count), (Loop(inside, integer(0), stop, body),)

    def _joined(self, taken: list[tuple[Value, Value]], body: Statements) -> Kernel:
        if len(taken) == 1:
            ((variable, tasks),) = taken
            loop = Loop(variable, integer(0), tasks, body, "parallel")
            return self.scope.kernel_with((loop,), tasks=tasks)
        task = place = self.scope.variable("task")
        found: dict[Value, Value] = {}
        tasks = integer(1)
        for variable, extent in reversed(taken[1:]):
            found[variable] = remainder(place, extent)
            place = divide(place, extent)
            tasks = multiply(tasks, extent)
        found[taken[0][0]] = place
        tasks = multiply(taken[0][1], tasks)
        loop = Loop(task, integer(0), tasks, substitute(body, found), "parallel")
        return self.scope.kernel_with((loop,), tasks=tasks)
