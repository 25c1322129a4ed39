"""Print what a rank sees of its launch; run by `test_launch`."""

import os
import sys

from weft.config import settings
from weft.runtime.communicator import world

ranks = world()
threads = settings.threads
print(f"rank {ranks.rank} of {ranks.size}: {sys.argv[1:]} {threads} {ranks.timeout}", flush=True)
ranks.barrier()
sys.exit(int(os.environ.get("STATUS_OF_RANK_1", "0")) if ranks.rank == 1 else 0)
