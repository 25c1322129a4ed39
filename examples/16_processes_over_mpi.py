"""One program, one process or several: the same bits over MPI.

You learn that a mesh may lie over processes: started by `python -m weft.launch -n 2 script.py`,
each rank holds and computes its own pieces. Run plainly, this script trains alone, then starts
itself as two ranks, which must arrive at the very same weights. (That needs `weft[mpi]`.)
"""

import hashlib
import subprocess
import sys

import weft as wf
from weft import P
from weft.errors import BackendError
from weft.launch import find_mpirun
from weft.runtime.communicator import world

mesh = wf.DeviceMesh("ranks", (2, 2), ("data", "model"))
k0, k1, k2 = wf.random.split(wf.random.key(0), 3)
x = wf.random.normal(k0, (64, 16)).shard(mesh, P("data"))
target = wf.sin(wf.random.normal(k0, (64, 16)).sum(axis=1, keepdims=True)).shard(mesh, P("data"))
params = (
    (wf.random.normal(k1, (16, 32)) / 4).shard(mesh, P(None, "model")),
    (wf.random.normal(k2, (32, 1)) / 6).shard(mesh, P("model")),
)


def loss(params, x, target):
    up, down = params
    return wf.mean((wf.tanh(x @ up) @ down - target) ** 2)


@wf.compile
def step(params, x, target):
    value, gradients = wf.value_and_grad(loss)(params, x, target)
    return value, wf.tree_map(lambda p, g: wf.reshard(p - 0.3 * g, p.sharding), params, gradients)


for number in range(50):
    value, params = step(params, x, target)
    if number == 0:
        first = value.item()

last = value.item()
bits = b"".join(wf.all_gather(p).numpy().tobytes() for p in params)
digest = hashlib.sha256(bits).hexdigest()[:16]
held = [shard.tensor.shape for shard in params[0].dual.shards]
me = world()
print(
    f"rank {me.rank} of {me.size}: loss {first:.4f} -> {last:.4f}, weights {digest},"
    f" pieces of the first here: {held}",
    flush=True,
)
assert last < 0.5 * first

if len(sys.argv) > 1:
    assert digest == sys.argv[1], "several processes must give the bits of one"
elif me.size == 1:
    try:
        find_mpirun()
    except BackendError as error:
        print(f"only one process: {error}")
        sys.exit(0)
    command = [sys.executable, "-m", "weft.launch", "-n", "2", __file__, digest]
    sys.exit(subprocess.run(command, check=False, timeout=120).returncode)
