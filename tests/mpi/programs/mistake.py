"""One rank raises, or waits for ever; run by `test_failures`."""

import os
import signal
import sys
import threading
import time

import numpy as np

from weft.runtime.communicator import world

case = sys.argv[1]
if case == "before" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    raise KeyError("nobody has started MPI yet")
ranks = world()
members = tuple(range(ranks.size))
ranks.barrier()
print(f"rank {ranks.rank} has begun", flush=True)
if case == "raise" and ranks.rank == 1:
    raise ZeroDivisionError("the mistake of rank 1")
if case == "thread" and ranks.rank == 1:
    threading.Thread(target=time.sleep, args=(60,)).start()
    raise ZeroDivisionError("the mistake of rank 1")
if case == "exit" and ranks.rank == 1:
    sys.exit(7)
if case == "compute" and ranks.rank == 1:
    raise ZeroDivisionError("the mistake of rank 1")
if case == "compute":
    time.sleep(60)
if case == "hang" and ranks.rank == 1:
    time.sleep(60)
if case == "interrupt":
    begin = time.monotonic()
    if ranks.rank == 1:
        time.sleep(3)
        os._exit(0)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        ranks.all_reduce(np.ones(4), "sum", members)
    except KeyboardInterrupt:
        waited = time.monotonic() - begin
        assert 0.2 < waited < 2
        print(f"KeyboardInterrupt after {waited:.1f} s", flush=True)
    sys.exit()
ranks.all_reduce(np.ones(4), "sum", members)
print(f"rank {ranks.rank} is done", flush=True)
