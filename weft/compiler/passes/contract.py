"""Schedule a matrix product: tiles for the threads, panels for the caches, blocks for registers.

`contract` takes the kernel that lowering makes of a product, with whatever is computed of its
factors before and of its results after. The products of a result are taken in the order of the
depth, in pieces if it is long, however the product is cut. `plain` is the same without any cut.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import reduce

from weft.compiler.choice import USUAL, Choice
from weft.compiler.loops import (
    PIECE,
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    const,
    expressions,
    get,
    integer,
    walk,
)
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.passes.chains import in_chains
from weft.compiler.passes.contract_blocks import (
    by_lanes,
    choose,
    dealt,
    forced_path,
    orient,
)
from weft.compiler.passes.contract_frame import Frame
from weft.compiler.passes.contract_hidden import FINE, masks
from weft.compiler.passes.contract_match import Product, match
from weft.compiler.passes.contract_pairs import paired
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.passes.contract_words import in_words
from weft.compiler.polynomial import multiply
from weft.compiler.rebuild import Scope, Statements, with_body


def contract(
    kernel: Kernel,
    vector_bytes: int,
    registers: int = 0,
    choice: Choice = USUAL,
    native: Set[str] = frozenset(),
    *,
    pieces: int = 0,
    tall: int = 0,
    goes_on: bool = False,
) -> Kernel:
    """The kernel scheduled, if it is a product; any other kernel comes back as it is.

    `registers` is the number of vector registers, where 16 for AVX and 32 otherwise is not it.
    `choice` decides how the product is cut; no bit depends on it. With `pieces` a task takes so
    many points of the depth only: those with the next ones go on with its sums, so they must come
    later. A product that cannot wait like that comes back as it is. `tall` is how many rows tiles
    have, and then no product is turned; `native` names the processor's own
    instructions, and `goes_on` says that batches follow each other in memory, so that caches can
    fetch the next one.
    """
    scope = Scope(kernel)
    product = match(scope)
    if product is None:
        return kernel
    if not pieces and forced_path() != "scalar":
        product = in_words(scope, product, native)
    registers = registers or (16 if vector_bytes == 32 else 32)
    lanes = vector_bytes // product.dtype.itemsize
    given, product = product, product if tall else orient(product, lanes)
    if not (pieces or tall):
        product = paired(dealt(scope, product, lanes), lanes)
    block = choose(product, vector_bytes, registers, choice, tall)
    block = replace(block, goes_on=goes_on)
    if any(masks(product)):
        block = replace(block, depth=min(block.depth, FINE))
    block = by_lanes(product, block) if "lane" in native else block
    if tall and tall % block.rows == 0:  # a path that is forced may have other rows
        block = replace(block, tile_rows=tall)
    waits = _waits(product, scope.kernel) if pieces else None
    if pieces:
        if waits is None or (product.is_pieced and pieces != PIECE):
            return kernel
        block = replace(block, depth=pieces, per_piece=int(product.is_pieced))
        scope.kernel = _updating(kernel, waits.buffer)
    loop = tasks(Frame(scope, product, block, waits))
    whole = product is given and product.in_order  # rows follow each other, tile by tile
    rows = product.row[1] if whole else None
    batches = reduce(multiply, (extent for _, extent in product.batch), integer(1))
    notes = {"tasks": loop.stop, "contract": block, "rows": rows, "pieces": pieces}
    notes["batches"] = batches  # those whose results have one right factor may count as rows
    notes["fades"] = masks(product)[0] is not None  # rows may end before the depth
    return scope.kernel_with((loop,), **notes)


def _waits(product: Product, kernel: Kernel) -> Store | None:
    """Where sums can wait: the result's own place, if there is one result of their dtype."""
    stores = [s for s in product.epilogue if isinstance(s, Store)]
    if len(stores) != 1 or kernel.buffers[stores[0].buffer].dtype != product.dtype:
        return None
    read = {x.data for s in product.epilogue for x in walk(*expressions(s)) if x.op == "load"}
    return None if stores[0].buffer in read else stores[0]


def _updating(kernel: Kernel, buffer: int) -> Kernel:
    """The kernel that also reads what it has stored."""
    buffers = list(kernel.buffers)
    buffers[buffer] = replace(buffers[buffer], mode="update")
    return replace(kernel, buffers=tuple(buffers))


def plain(kernel: Kernel) -> Kernel:
    """The kernel with all products in serial loops: for what `contract` does not take."""
    scope = Scope(kernel)
    return scope.kernel_with(_without_products(scope, kernel.body))


def _without_products(scope: Scope, statements: Statements) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Reduce) and statement.parts[0].combine == "dot":
            made += _without_products(scope, in_chains(scope, statement))
        elif isinstance(statement, Reduce) and statement.parts[0].combine == "chain":
            made += _serial(scope, statement)
        elif isinstance(statement, Store | Assign):
            made.append(statement)
        else:
            made.append(with_body(statement, _without_products(scope, statement.body)))
    return tuple(made)


def _serial(scope: Scope, reduce: Reduce) -> Statements:
    """A chain: sums from zero, one point after another."""
    starts: list[Statement] = []
    body = list(_without_products(scope, reduce.body))
    for part in reduce.parts:
        (target,), (left, right) = part.targets, part.values
        starts.append(Assign(target, const(0, left.dtype)))
        body.append(Assign(target, multiplied(left, right, get(target, left.dtype))))
    inner: Statements = tuple(body)
    for variable, extent in reversed(reduce.axes):
        inner = (Loop(variable, integer(0), extent, inner),)
    return (*starts, *inner)
