"""Settings that every test shares: hypothesis profiles and the seed of the run.

Most draws are the same in every run, so that a red test stays red. One seed is fresh each run: it
decides the order of the tests and whatever a test draws through the `fresh_seed` fixture. It is
printed in the header, and `--fresh-seed` or `WEFT_TEST_SEED` brings a run back.

Of a test with many cases one is enough while you work: the seed picks it, and the others are marked
`slow`, so that `make quick` looks at every area in little time.

Compiled code is kept beside pytest's cache, for all workers of a run and for the next run: the key
of an entry is made of the compiler's sources, so an old entry is never used.
"""

import gc
import os
from pathlib import Path

import hypothesis
import pytest

SEED_BITS = 32

# Before weft is imported: it reads its settings then, and child processes inherit these.
os.environ["WEFT_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "weft-code")
os.environ["WEFT_CACHE_BYTES"] = str(256 << 20)
os.environ["WEFT_CALIBRATE"] = "0"  # compiling is the same on every machine
os.environ.setdefault("WEFT_DRAFTS", "0")  # what runs is the code that lasts

hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=25,
    print_blob=True,
    # A loaded machine is slow at drawing; that says nothing about the test.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "thorough",
    hypothesis.settings.get_profile("ci"),
    derandomize=False,
    max_examples=1000,
)
hypothesis.settings.load_profile("ci")

seed_key = pytest.StashKey[int]()


def parse_seed(text: str, source: str) -> int:
    """Read a seed that fits every generator, or say which setting is wrong."""
    if not text.isdecimal() or int(text) >= 2**SEED_BITS:
        raise pytest.UsageError(f"{source}: expected an integer below 2**{SEED_BITS}, got {text!r}")
    return int(text)


def choose_seed(config: pytest.Config) -> int:
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:  # a worker of pytest-xdist: the controller has chosen
        return int(worker_input["fresh_seed"])
    option = config.getoption("--fresh-seed")
    if option is not None:
        return parse_seed(option, "--fresh-seed")
    variable = os.environ.get("WEFT_TEST_SEED")
    if variable is not None:
        return parse_seed(variable, "WEFT_TEST_SEED")
    return int.from_bytes(os.urandom(SEED_BITS // 8))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fresh-seed",
        metavar="N",
        default=None,
        help="seed of the run's order and fresh draws (default: WEFT_TEST_SEED, else random)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    seed = choose_seed(config)
    config.stash[seed_key] = seed
    # Calls of all kinds are recorded from the same size on, so that tensors of tests can be small.
    pytest.MonkeyPatch().setattr("weft.ops.ready.LIGHT", 1)
    # pytest-randomly reads its option after this hook: one number brings back the whole run.
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["fresh_seed"] = node.config.stash[seed_key]


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        chosen = config.stash[seed_key] % len(group)
        for item in (*group[:chosen], *group[chosen + 1 :]):
            item.add_marker("slow")


def pytest_collection() -> None:
    gc.disable()  # of all that collecting makes, nothing is garbage


def pytest_collection_finish() -> None:
    gc.enable()
    keep_what_is_there()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        keep_what_is_there()


def keep_what_is_there() -> None:
    """Take what is alive out of the sight of later collections: tests ask for many of them."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    return f"fresh seed: {config.stash[seed_key]} (WEFT_TEST_SEED brings it back)"


@pytest.fixture(scope="session")
def fresh_seed(pytestconfig: pytest.Config) -> int:
    """A seed that changes from run to run; the header of the run prints it."""
    return pytestconfig.stash[seed_key]
