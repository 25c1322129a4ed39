"""The kernel that orders many short rows: a network of exchanges, with one row in each lane.

Which two elements are compared never depends on what they are, so as many rows as a vector has
lanes are sorted at once. Every exchange leaves the smaller element at the lower place, so elements
past the end of a row, if there were any, would stay there: their exchanges are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.compiler.loops import Kernel, Statement, Value, When, integer
from weft.compiler.order_code import Body, Order, Records
from weft.compiler.order_rows import MOST_TASKS, Made, Task
from weft.compiler.steps import Memory

LONGEST = 512  # elements of a row
BYTES = 64  # of the lanes together


def fits_network(order: Order) -> bool:
    """Whether rows are short, fill half of the lanes, and have records that are one number."""
    lanes = BYTES // order.record[0].itemsize
    return order.size <= LONGEST and 2 * order.rows >= lanes and len(order.record) == 1


def exchanged_rows(order: Order, source: Memory, target: Memory) -> Made:
    """The kernel that orders many short rows."""
    network = _Network(order, source, target)
    steps = max(order.size - 1, 1).bit_length()
    memory = tuple(network.task.code.memory)
    return Made(network.kernel, memory, (target,), 4 + steps * (steps + 1) // 4)


class _Network:
    def __init__(self, order: Order, source: Memory, target: Memory) -> None:
        self.order = order
        self.task = task = Task(order, source, target)
        self.code = task.code
        dtype = order.record[0]
        task.records = Records(order, task.code, order.record)
        self.lanes = BYTES // dtype.itemsize
        self.row = self.code.array(dtype, order.size, self.lanes)
        self.held = self.code.register(dtype, self.lanes)
        self.special = self.code.register(order.key_dtype, self.lanes)
        self.kernel = self._kernel()

    def _kernel(self) -> Kernel:
        s, blocks = self.code, -(-self.order.rows // self.lanes)
        tasks = min(blocks, MOST_TASKS)
        share = -(-blocks // tasks)

        def run(task: Value) -> Body:
            start = s.mul(task, integer(share))
            stop = s.min(s.add(start, integer(share)), integer(blocks))
            return (s.loop(stop, self._block, start),)

        return s.kernel("order_short", tasks, run)

    def _block(self, number: Value) -> Body:
        """As many rows as there are lanes; lanes past the last row do that one again."""
        s, task, order = self.code, self.task, self.order
        first = s.mul(number, integer(self.lanes))
        end = s.add(first, integer(self.lanes))
        last, zero = integer(order.rows - 1), s.const(0, order.key_dtype)

        def sort(lane: Value) -> Body:
            row = s.min(lane, last)
            base, goal = s.mul(row, integer(order.size)), s.mul(row, integer(order.kept))

            def read(i: Value) -> Body:
                bits = task.bits(s.add(base, i))
                made = self.row.set(task.records.make(task.keys.key(bits), i)[0], i)
                if not task.restores:
                    return (made,)
                found = s.cast(task.keys.is_special(bits), order.key_dtype)
                return made, self.special.set(s.bit_or(self.special.value, found))

            def write(i: Value) -> Body:
                return (task.store(s.add(goal, i), task.result((self.row.at(i),))),)

            return (
                self.special.set(zero),
                s.loop(order.size, read),
                *self._exchanges(),
                s.loop(order.kept, write),
            )

        body = s.loop(end, sort, first, "vector", self.lanes)
        if not task.restores:
            return (body,)
        rows = s.min(end, integer(order.rows))
        mend = s.loop(rows, lambda r: task.restored(s.mul(r, integer(order.size))), first)
        return body, When(s.not_equal(s.across("or", self.special.value), zero), (mend,))

    def _exchanges(self) -> Iterator[Statement]:
        """Sort stretches of 2, 4, 8… elements: two meet end to end, then half by half."""
        length = 2
        while length // 2 < self.order.size:
            yield self._stage(length, length // 2, turned=True)
            distance = length // 4
            while distance:
                yield self._stage(2 * distance, distance, turned=False)
                distance //= 2
            length *= 2

    def _stage(self, length: int, distance: int, turned: bool) -> Statement:
        """Exchanges in each stretch of `length`: of elements a distance apart, or of the first with
        the last, the second with the one before it, and so on."""
        s, size = self.code, self.order.size

        def stretch(number: Value) -> Body:
            first = s.mul(number, integer(length))
            if turned:
                last = s.add(first, integer(length - 1))
                start = s.max(s.sub(last, integer(size - 1)), integer(0))
                pair = lambda i: self._exchange(s.add(first, i), s.sub(last, i))  # noqa: E731
                return (s.loop(distance, pair, start),)
            stop = s.min(s.sub(integer(size - distance), first), integer(distance))
            pair = lambda i: self._exchange(  # noqa: E731
                s.add(first, i), s.add(first, s.add(i, integer(distance)))
            )
            return (s.loop(stop, pair),)

        return s.loop(-(-size // length), stretch)

    def _exchange(self, low: Value, high: Value) -> Body:
        s, row, held = self.code, self.row, self.held
        return (
            held.set(row.at(low)),
            row.set(s.min(held.value, row.at(high)), low),
            row.set(s.max(held.value, row.at(high)), high),
        )
