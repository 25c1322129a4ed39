"""Products each of whose results has both factors to itself: dots of vectors, or of many rows.

There are neither rows nor columns that could be lanes. Batches are, as if they were columns with
left factors of their own; of long vectors it is the pieces that a `dot` is summed in anyway, which
a second kernel adds up in order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from weft.compiler.choice import USUAL, Choice
from weft.compiler.loops import (
    PIECE,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Store,
    Value,
    const,
    get,
    identity_of,
    integer,
    load,
    value,
    walk,
)
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.passes.contract_blocks import choose, forced_path
from weft.compiler.passes.contract_frame import Frame
from weft.compiler.passes.contract_hidden import mask_of_sums, masks
from weft.compiler.passes.contract_match import Product, depth_of, match, runs_along
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.polynomial import add, hides, known, multiply, number, stride
from weft.compiler.rebuild import Scope, Statements, substitute, substitute_value

FEWEST = 4  # lanes: with fewer, sums wait for each other, and vectors are turned in vain


def paired(product: Product, lanes: int) -> Product:
    """The product whose columns are its innermost batches, if it has no others, and no rows."""
    if lanes < FEWEST or not product.batch or forced_path() not in ("", "turned"):
        return product
    *batch, own = product.batch
    count, depth = known(own[1]), known(product.depth[1])
    many = (count is None or count >= lanes) and (depth is None or depth >= lanes)
    if not many or not _is_dot(product) or _is_far(product, own[0], lanes):
        return product
    return replace(_without_column(product), batch=tuple(batch), column=own, in_order=False)


def _without_column(product: Product) -> Product:
    """The product whose only column is no variable any more."""
    names = {product.column[0]: integer(0)}
    return replace(
        product,
        left=substitute_value(product.left, names),
        right=substitute_value(product.right, names),
        epilogue=substitute(product.epilogue, names),
    )


def _is_dot(product: Product) -> bool:
    """Whether each result has both factors to itself."""
    if not known(product.row[1]) == known(product.column[1]) == 1:
        return False
    factors = product.left, product.right
    own = all(hides(x, variable) for x in factors for variable, _ in product.batch)
    bare = mask_of_sums(product) is None and not any(masks(product))
    return own and bare and not product.words


def _is_along(product: Product) -> bool:
    """Whether both factors lie in memory along the depth."""
    return all(runs_along(x, product.depth[0]) for x in (product.left, product.right))


def _is_far(product: Product, batch: Value, lanes: int) -> bool:
    """Whether neighbouring lanes read further apart than dots are long that are not `long`.

    How far is not known where sizes are parameters: as far as a dot is long, if it is read along.
    """
    loads = [x for x in walk(product.left, product.right) if x.op == "load"]
    steps = [number(stride(x.args[0], batch)) for x in loads]
    known_steps = [abs(step) for step in steps if step is not None]
    if len(known_steps) < len(steps):
        return not _is_along(product)
    return max(known_steps, default=0) > PIECE * lanes


def is_long_dot(kernel: Kernel, vector_bytes: int) -> bool:
    """Whether a kernel with known sizes is dots of at least as many pieces as there are lanes."""
    pieces = depth_of(kernel) // PIECE
    product = match(Scope(kernel)) if pieces > 1 and not forced_path() else None
    if product is None or not product.is_pieced or not _is_dot(product):
        return False
    sizes = all(known(extent) is not None for _, extent in product.batch)
    lanes = vector_bytes // product.dtype.itemsize
    return _is_along(product) and sizes and pieces >= lanes >= FEWEST


def contract_long_dot(
    kernel: Kernel, vector_bytes: int, registers: int, choice: Choice = USUAL
) -> tuple[Kernel, Kernel]:
    """The kernel that sums whole pieces, and the one that adds them up, with the rest.

    The first has one buffer more than the kernel, its last one, which the second reads. How the
    second runs is not said: it is plain loops.
    """
    scope = Scope(kernel)
    product = match(scope)
    assert product is not None, "it was looked at before"
    pieces, dtype = depth_of(kernel) // PIECE, product.dtype
    buffer = Buffer("partials", dtype, "write")
    piece, number = scope.variable("piece"), len(kernel.buffers)
    batch, batches = integer(0), integer(1)
    for variable, extent in product.batch:
        batch, batches = add(multiply(batch, extent), variable), multiply(batches, extent)
    place = add(multiply(batch, pieces), piece)
    deep = {product.depth[0]: add(multiply(piece, PIECE), product.depth[0])}
    alone = _without_column(product)
    part = replace(
        alone,
        column=(piece, integer(pieces)),
        depth=(product.depth[0], integer(PIECE)),
        left=substitute_value(alone.left, deep),
        right=substitute_value(alone.right, deep),
        epilogue=(Store(number, place, get(product.target, dtype)),),
    )
    scope.kernel = replace(kernel, buffers=(*kernel.buffers, buffer))
    block = choose(part, vector_bytes, registers, choice)
    loop = tasks(Frame(scope, part, block))
    notes = {"contract": block, "partials": (dtype, multiply(batches, pieces))}
    first = scope.kernel_with((loop,), tasks=loop.stop, **notes)
    scope = Scope(replace(kernel, buffers=(*kernel.buffers, replace(buffer, mode="read"))))
    found = load(number, place, dtype)
    return first, scope.kernel_with(_ending(scope, product, (piece, pieces), found))


def _ending(scope: Scope, product: Product, pieces: tuple[Value, int], found: Value) -> Statements:
    """Loops over all results: each is its pieces' sums in order, then that of the rest."""
    dtype, target, (depth, extent) = product.dtype, product.target, product.depth
    piece, count = pieces

    def joined(x: Value) -> Assign:
        return Assign(target, value("add", (get(target, dtype), x), dtype))

    body: Statements = (
        Assign(target, identity_of("add", dtype)),
        Loop(piece, integer(0), integer(count), (joined(found),)),
    )
    if known(extent) != count * PIECE:
        rest = scope.local("rest", dtype)
        taken = multiplied(product.left, product.right, get(rest, dtype))
        more = Loop(depth, integer(count * PIECE), extent, (Assign(rest, taken),))
        body += (Assign(rest, const(0, dtype)), more, joined(get(rest, dtype)))
    body += product.epilogue
    return reduce(
        lambda inner, axis: (Loop(axis[0], integer(0), axis[1], inner),),
        reversed((*product.batch, product.row, product.column)),
        body,
    )
