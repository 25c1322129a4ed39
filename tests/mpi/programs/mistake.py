"""One rank raises, or waits for ever; run by `test_failures`."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from weft.runtime.communicator import world

LONG = 600  # seconds: nobody must wait for this
case = sys.argv[1]
if case == "before" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    raise KeyError("nobody has started MPI yet")
ranks = world()
members = tuple(range(ranks.size))
ranks.barrier()
print(f"rank {ranks.rank} has begun", flush=True)
if case in ("raise", "thread"):
    if ranks.rank == 1 and case == "thread":
        threading.Thread(target=time.sleep, args=(LONG,)).start()
    if ranks.rank == 1:
        raise ZeroDivisionError("the mistake of rank 1")
    if ranks.rank == 2:
        time.sleep(LONG)  # in a computation, it meets nobody
if case == "exit" and ranks.rank == 1:
    sys.exit(7)
if case == "hang" and ranks.rank == 1:
    time.sleep(LONG)
if case == "interrupt":
    mark = Path(sys.argv[2])
    if ranks.rank == 1:
        while not mark.exists():
            time.sleep(0.01)
        os._exit(0)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        ranks.all_reduce(np.ones(4), "sum", members)
    except KeyboardInterrupt:
        print("KeyboardInterrupt while it waits", flush=True)
    mark.touch()
    sys.exit()
ranks.all_reduce(np.ones(4), "sum", members)
print(f"rank {ranks.rank} is done", flush=True)
