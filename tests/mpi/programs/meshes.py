"""Print a digest of what many programs over meshes give; run by `test_meshes`, alone and as ranks.

The text depends on the meshes only: whoever owns the devices, the bits are the same.
"""

import contextlib
import hashlib
import io
import sys
from pathlib import Path

import numpy as np

import weft as wf
from weft import P
from weft.checkpoints import load, save
from weft.runtime.communicator import world

ranks = world()
LINE = wf.DeviceMesh("line", (4,), ("x",))
GRID = wf.DeviceMesh("grid", (2, 2), ("dp", "tp"))
LONG = wf.DeviceMesh("long", (2, 4), ("a", "b"))  # ranks own several devices along an axis
THREE = wf.DeviceMesh("three", (4, 3), ("a", "b"))
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(5, 6)), RNG.normal(size=(5, 6))
EVEN = RNG.normal(size=(8, 8))
WEIGHTS = {
    "up": RNG.normal(size=(6, 12)) / 3,
    "bias": RNG.normal(size=12),
    "down": RNG.normal(size=(12, 6)) / 4,
}


def laid(array, mesh, spec):
    return wf.asarray(array).shard(mesh, spec)


# -- training --------------------------------------------------------------------------------

WAYS = {
    "data": (LINE, P("x"), {}),
    "data and tensor": (GRID, P("dp"), {"up": P(None, "tp"), "bias": P("tp"), "down": P("tp")}),
    "fully sharded": (LINE, P("x"), {"up": P("x"), "bias": P("x"), "down": P("x")}),
    "crossed": (LONG, P(("a", "b")), {"up": P("b", "a"), "bias": P("b"), "down": P("a", "b")}),
    "uneven": (THREE, P("b"), {"up": P("b", "a"), "bias": P("a"), "down": P("a")}),
}


def loss(p, x, y):
    hidden = wf.gelu(x @ p["up"] + p["bias"])
    return wf.mean((hidden @ p["down"] - y) ** 2)


def step(p, x, y):
    value, slopes = wf.value_and_grad(loss)(p, x, y)
    return value, {k: p[k] - 0.1 * slopes[k] for k in p}


def train(way, run):
    mesh, batch, places = WAYS[way]
    p = {k: laid(a, mesh, places.get(k, P())) for k, a in WEIGHTS.items()}
    x, y = laid(X, mesh, batch), laid(Y, mesh, batch)
    losses = []
    for _ in range(3):
        value, p = run(p, x, y)
        losses.append(value)
    return losses, p


def train_both(way):
    eager, compiled = train(way, step), train(way, wf.compile(step))
    for a, b in zip(whole(eager), whole(compiled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    return eager, compiled


BIG = {"in": RNG.normal(size=(6, 300)), "mid": RNG.normal(size=(300, 301)) / 17}
BIG |= {"shift": RNG.normal(size=301), "out": RNG.normal(size=(301, 6)) / 17}


def big_loss(p, x, y):
    hidden = wf.tanh(wf.tanh(x @ p["in"]) @ p["mid"] + p["shift"].astype("float32"))
    return wf.mean((hidden @ p["out"] - y) ** 2)


def big_step(p, x, y):
    value, slopes = wf.value_and_grad(big_loss)(p, x, y)
    norm = wf.sqrt(sum((slope * slope).sum() for slope in slopes.values()))  # needs all of them
    return value, norm, {k: p[k] - slopes[k] / wf.maximum(norm, 1.0).astype(p[k].dtype) for k in p}


def explained(compiled, *args):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        compiled.explain(*args)
    return text.getvalue()


def train_together(mesh, batch):
    """Sums that are large and of two dtypes: ranks of one host read each other's terms."""
    found = []
    compiled = wf.compile(big_step)
    for run in (big_step, compiled):
        kinds = {k: a if k == "shift" else a.astype(np.float32) for k, a in BIG.items()}
        p = {k: laid(a, mesh, P()) for k, a in kinds.items()}
        x, y = (laid(a[:4].astype(np.float32), mesh, batch) for a in (X, Y))
        for _ in range(5):
            value, norm, p = run(p, x, y)
            found += [value, norm]
        found.append(p)
    if ranks.size > 1 and mesh is GRID and type(ranks._transport).__name__ == "SharedMemory":
        text = explained(compiled, p, x, y)
        assert "memory that processes share" in text and "host calls 1" in text, text
    return found


# -- functions that see one piece ------------------------------------------------------------


def by_hand(function, mesh, spec, out):
    return wf.shard_map(function, mesh, in_specs=spec, out_specs=out, manual=True)


def collectives(mesh, axis, count):
    spec, other = P(axis), P(None, axis)
    ring = [(i, (i + 1) % count) for i in range(count)]
    line = [(i, i + 1) for i in range(count - 1)]
    yield by_hand(lambda x: wf.all_reduce(x, axis), mesh, spec, P())
    yield by_hand(lambda x: wf.all_reduce(x, axis, op="mean"), mesh, spec, P())
    yield by_hand(lambda x: wf.all_reduce(x, axis, op="max"), mesh, spec, P())
    yield by_hand(lambda x: wf.all_reduce(x, axis, op="min"), mesh, spec, P())
    yield by_hand(lambda x: wf.all_reduce(x, axis, op="prod"), mesh, spec, P())
    yield by_hand(lambda x: wf.sin(wf.all_gather(x, axis, axis=1)), mesh, spec, P())
    yield by_hand(lambda x: wf.reduce_scatter(x, axis, axis=1), mesh, spec, other)
    yield by_hand(lambda x: wf.all_to_all(x, axis, axis=0, split=1), mesh, spec, other)
    yield by_hand(lambda x: wf.ppermute(x, axis, ring) * 2, mesh, spec, spec)
    yield by_hand(lambda x: wf.ppermute(x, axis, line) + x, mesh, spec, spec)
    yield by_hand(lambda x: x * (1 + wf.axis_index(axis)), mesh, spec, spec)


def total(function):
    return lambda *args: sum(wf.sum(wf.cos(y)) for y in wf.tree_leaves(function(*args)))


def manual(mesh, axis):
    functions = list(collectives(mesh, axis, mesh.axis_size(axis)))

    def all_of_them(x):
        return [function(x) for function in functions]

    x = wf.asarray(EVEN)
    slope = wf.grad(total(all_of_them))(x)
    return all_of_them(x), wf.compile(all_of_them)(x), slope, wf.jvp(all_of_them, (x,), (x,))[1]


def gradients_inside():
    def body(p, x, y):
        value, slopes = wf.value_and_grad(loss)(p, x, y)
        slopes = wf.tree_map(lambda g: wf.all_reduce(g, "dp", op="mean"), slopes)
        return wf.all_reduce(value, "dp", op="mean"), slopes

    run = wf.shard_map(
        body, GRID, in_specs=(P(), P("dp"), P("dp")), out_specs=(P(), P()), manual=True
    )
    args = wf.tree_map(wf.asarray, (WEIGHTS, X[:4], Y[:4]))
    return run(*args), wf.compile(run)(*args)


def megatron_by_hand():
    def body(p, x):
        return wf.all_reduce(wf.tanh(x @ p["up"] + p["bias"]) @ p["down"], "tp")

    places = {"up": P(None, "tp"), "bias": P("tp"), "down": P("tp")}
    run = wf.shard_map(body, GRID, in_specs=(places, P("dp")), out_specs=P("dp"), manual=True)
    args = wf.tree_map(wf.asarray, (WEIGHTS, X[:4]))
    slopes = wf.grad(total(run), argnums=(0, 1))
    return run(*args), slopes(*args), wf.compile(slopes)(*args)


def from_outside():
    """A function that sees pieces uses tensors of its surroundings, and goes its own way."""

    def run(w):
        def body(x):
            up = wf.cond(wf.sum(x) > 0, lambda x: wf.sin(x) @ w, lambda x: wf.cos(x @ w), x)
            return up + wf.while_loop(lambda c: wf.sum(c) < 9, lambda c: c + 1, x[0, 0] ** 2)

        return by_hand(body, GRID, P("dp"), P("dp"))(wf.asarray(X[:4]))

    found = []
    for w in (wf.asarray(WEIGHTS["up"]), laid(WEIGHTS["up"], GRID, P("tp", "dp"))):
        slope = wf.grad(lambda w: total(run)(w))
        found += [run(w), wf.compile(run)(w), slope(w), wf.compile(slope)(w)]
    return found


def loops_by_hand():
    """Processes meet in every step; derivatives and maps of such loops make them meet again."""
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def turn(i, c, x):
        return wf.sin(wf.ppermute(c, "x", ring)) + x * i

    def add(c, r):
        return c / 2 + wf.psum(r, "x"), c * r

    def as_loops(x):
        turned = wf.fori_loop(0, 4, lambda i, c: turn(i, c, x), x)
        last, rows = wf.scan(add, x[0], turned)
        asked = wf.psum(wf.sum(last), "x") > 0
        return wf.cond(asked, lambda v: wf.pmax(v, "x") * v, lambda v: -v, rows)

    def step_by_step(x):
        c = x
        for i in range(4):
            c = turn(i, c, x)
        last, rows = x[0], []
        for r in c:
            last, row = add(last, r)
            rows.append(row)
        v = wf.stack(rows)
        return wf.where(wf.psum(wf.sum(last), "x") > 0, wf.pmax(v, "x") * v, -v)

    run, plain = (by_hand(f, LINE, P("x"), P("x")) for f in (as_loops, step_by_step))
    x, pair = wf.asarray(EVEN), wf.asarray(np.stack([EVEN, -EVEN]))
    slope, right = wf.grad(total(run)), wf.grad(total(plain))
    slopes = slope(x), wf.compile(slope)(x), wf.vmap(slope)(pair)
    for found, expected in zip(slopes, (right(x), right(x), wf.vmap(right)(pair)), strict=True):
        np.testing.assert_allclose(whole(found)[0], whole(expected)[0], rtol=1e-9, atol=1e-9)
    return run(x), wf.jvp(run, (x,), (x,))[1], wf.vmap(run)(pair)


def automatic():
    places = {"up": P(None, "tp"), "bias": P("tp"), "down": P("tp")}
    run = wf.shard_map(loss, GRID, in_specs=(places, P("dp"), P("dp")), out_specs=P())
    args = wf.tree_map(wf.asarray, (WEIGHTS, X, Y))
    return run(*args), wf.compile(run)(*args), wf.grad(run)(*args)


def solved():
    run = wf.shard_map(loss, GRID, auto_sharding=True)
    args = wf.tree_map(wf.asarray, (WEIGHTS, X[:4], Y[:4]))
    return run(*args), wf.grad(run)(*args)


# -- layouts, loops, draws, files --------------------------------------------------------------


def layouts():
    found = []
    for mesh, a, b in ((GRID, "dp", "tp"), (LONG, "a", "b"), (THREE, "a", "b")):
        x = laid(EVEN[:7], mesh, P(a, b))
        moves = [P(b, a), P((a, b)), P(None, (b, a)), P(b), P(), P((b, a)), P(None, a)]
        for spec in moves:
            x = x.reshard(spec)
            found.append(x + 0)
        pending = laid(EVEN, mesh, P(None, a)) @ laid(EVEN, mesh, P(a))
        found += [pending + 0, pending.reshard(P(a, b)), wf.all_reduce(pending), pending.max()]
        found += [x[1:5], x.T @ x, wf.sort(x, axis=0), wf.cumsum(x, axis=1), x.sum(axis=0)]
    return found


def gathered_once():
    """A tensor that several calls need whole travels once in a compiled graph."""

    def several(x):
        return wf.cumprod(x, axis=0), wf.cumsum(x, axis=0), x.reshard(P()), x.reshard(P()) + 1

    x = laid(EVEN, LINE, P("x"))
    compiled = wf.compile(several)
    with wf.communication_log() as log:
        found = compiled(x)
    if ranks.size > 1:
        assert log.count("all_gather") == 1, log
        assert explained(compiled, x).count("host call gather_world") == LINE.size // ranks.size
    return several(x), found


def permutations():
    found = []
    for mesh, axis in ((LINE, "x"), (GRID, "dp"), (GRID, "tp"), (LONG, "b")):
        count = mesh.axis_size(axis)
        x = laid(EVEN, mesh, P(axis))
        ring = [(i, (i + 1) % count) for i in range(count)]
        found += [wf.ppermute(x, axis, ring), wf.ppermute(x, axis, ring[:1])]
        found.append(wf.grad(lambda v: (wf.ppermute(v, axis, ring) * v).sum())(x))  # noqa: B023
    return found


LOOPS = {
    "cond": lambda x: wf.cond(x.sum() > 0, lambda v: wf.sin(v) * 2, lambda v: v + x, x),
    "while": lambda x: wf.while_loop(lambda c: (c * c).sum() < 100, lambda c: 2 * c + 1, x),
    "fori": lambda x: wf.fori_loop(0, 3, lambda i, c: wf.sin(c) * x + i, x),
    "scan": lambda x: wf.scan(lambda c, r: (wf.sin(c + r.sum()), c * r), wf.zeros_like(x[0]), x),
    "matmul": lambda x: wf.scan(lambda c, r: (wf.tanh(c @ x.T @ x), c.sum()), x[0], x[:3]),
}


def loops():
    def all_of_them(x):
        return [function(x) for function in LOOPS.values()]

    def reversible(x):
        return [function(x) for name, function in LOOPS.items() if name != "while"]

    found = []
    for mesh, spec in ((LINE, P("x")), (GRID, P("dp", "tp")), (LONG, P(None, "b"))):
        x = laid(X, mesh, spec)
        found += [all_of_them(x), wf.compile(all_of_them)(x), wf.grad(total(reversible))(x)]
    return found


def maps():
    w = laid(WEIGHTS["up"], GRID, P(None, "tp"))
    spread = wf.vmap(lambda v: wf.tanh(v @ w), spmd_axis_name="dp")
    plain = wf.vmap(lambda v: v @ w, in_axes=1, out_axes=1)
    x, batch = laid(X[:4], GRID, P()), wf.asarray(np.stack([EVEN, EVEN.T]))
    found = [spread(x), wf.compile(spread)(x), plain(laid(X.T, GRID, P("tp", "dp")))]
    for mesh, axis in ((GRID, "tp"), (LINE, "x")):
        for function in collectives(mesh, axis, mesh.axis_size(axis)):
            found.append(wf.vmap(function)(batch))
            alone = np.stack([whole(function(x))[0] for x in batch])
            np.testing.assert_array_equal(whole(found[-1])[0], alone)
    return found


def draws():
    found = []
    for mesh, spec in ((GRID, P("dp", "tp")), (LONG, P("b", "a")), (LINE, P("x"))):
        key = wf.random.key(3)
        draw = wf.shard_map(lambda k: wf.random.normal(k, (7, 5)), mesh, out_specs=spec)
        x = laid(X, mesh, P(mesh.axis_names[0]))
        dropped = wf.where(wf.random.uniform(key, x.shape) < 0.5, x, 0)
        found += [draw(key), wf.compile(draw)(key), dropped]
    return found


FOLDER = Path(sys.argv[1])


def checkpoints():
    """Whatever was saved by however many processes loads here, and bits are the same."""
    tree = {
        "cut": laid(X, GRID, P("tp", "dp")),
        "both": laid(X[0], LONG, P(("a", "b"))),
        "copied": laid(X[1], LINE, P()),
        "sum": laid(X, GRID, P(None, "tp")) @ laid(Y.T, GRID, P("tp")),
        "apart": wf.asarray(5),
    }
    save(FOLDER / str(ranks.size), tree)
    found = []
    for path in sorted(FOLDER.iterdir()):
        there = load(path, wf.tree_map(wf.zeros_like, tree))
        other = load(path, {k: laid(0 * x.reshard(P()), LINE, P("x")) if x.ndim else x
                            for k, x in tree.items()})  # fmt: skip
        for k, x in tree.items():
            for a in (there[k], other[k]):
                np.testing.assert_array_equal(whole(a)[0], whole(x)[0])
    return tree | {"found": found}


def holds_only_its_shards():
    """A process has the pieces of its own devices, and no others, whatever made the tensor."""
    share = max(1, LINE.size // ranks.size)
    x = laid(np.zeros((64, 1024)), LINE, P("x"))
    _, p = train("fully sharded", wf.compile(step))
    for tensor in (x, x + 1, wf.grad(lambda v: (v * v).sum())(x), wf.compile(wf.sin)(x)):
        assert [s.tensor.shape for s in tensor.dual.shards] == [(16, 1024)] * share
        assert wf.realize(tensor).dual.shards[0].index[0].start == 16 * share * ranks.rank
    assert len(p["up"].dual.shards) == share
    assert sum(s.tensor.size for s in p["down"].dual.shards) == WEIGHTS["down"].size * share // 4
    before = wf.memory_report().nbytes
    y = wf.realize(x + 2)
    grown = wf.memory_report().nbytes - before
    assert grown <= y.nbytes * share // 4 + 1024, (grown, y.nbytes)
    return ()


CHECKS = {
    **{f"train {way}": (train_both, way) for way in WAYS},
    "train together": (train_together, GRID, P("dp")),
    "train together on a line": (train_together, LINE, P("x")),
    "manual line": (manual, LINE, "x"),
    "manual grid": (manual, GRID, "tp"),
    "manual grid, outer": (manual, GRID, "dp"),
    "manual long": (manual, LONG, "b"),
    "gradients inside": (gradients_inside,),
    "megatron by hand": (megatron_by_hand,),
    "from outside": (from_outside,),
    "loops by hand": (loops_by_hand,),
    "automatic": (automatic,),
    "solved": (solved,),
    "layouts": (layouts,),
    "gathered once": (gathered_once,),
    "permutations": (permutations,),
    "loops": (loops,),
    "maps": (maps,),
    "draws": (draws,),
    "checkpoints": (checkpoints,),
    "memory": (holds_only_its_shards,),
}


def whole(tree):
    """The arrays of a tree, put together from all processes."""
    leaves = [wf.asarray(x) for x in wf.tree_leaves(tree)]
    return [(x if x.sharding.mesh is None else x.reshard(P())).numpy() for x in leaves]


def digest(arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def main():
    wanted = sys.argv[2:]
    for name, (function, *arguments) in CHECKS.items():
        if wanted and name not in wanted:
            continue
        arrays = whole(function(*arguments))
        line = f"{name}: {len(arrays)} arrays, {digest(arrays)}"
        ranks.check(line)
        if ranks.rank == 0:
            print(line, flush=True)
    print(f"rank {ranks.rank} is done", flush=True)


main()
