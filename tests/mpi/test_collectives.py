import re

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, transport", [(2, "SharedMemory"), (4, "SharedMemory"), (3, "Messages")]
)
def test_every_collective_gives_the_bits_of_a_loop_in_numpy(succeed, ranks, transport):
    succeed(ranks, "collectives.py", transport)


@pytest.mark.slow
@pytest.mark.parametrize("ranks, transport", [(4, "SharedMemory"), (2, "Messages")])
def test_ranks_that_diverge_or_come_late_are_named_everywhere(succeed, ranks, transport):
    text = succeed(ranks, "divergence.py", transport)
    assert re.search(r"rank 1 did not come in \d+\.\d s", text), text
