"""The core is five packages; each imports alone, and the core's surface has its names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import weft as wf
import weft.core

BELOW = {
    "common": set(),
    "graph": {"common"},
    "tensor": {"common", "graph"},
    "sharding": {"common", "graph", "tensor"},
    "autograd": {"common", "graph", "tensor"},
}
# Bare parents, so that nothing but the package itself decides what is loaded.
ALONE = """
import importlib, pathlib, pkgutil, sys, types
root = pathlib.Path(sys.argv[1])
for name, path in (("weft", root), ("weft.core", root / "core")):
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
package = importlib.import_module(f"weft.core.{sys.argv[2]}")
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(found.name)
print(*sorted({m.split(".")[2] for m in sys.modules if m.startswith("weft.core.")}))
print(*sorted(m for m in sys.modules if m.startswith(("weft.ops", "weft.runtime"))))
"""


@pytest.mark.promise("S0.1")
@pytest.mark.parametrize("name", BELOW)
def test_each_part_of_the_core_imports_alone_with_no_cycle(name):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, next(iter(wf.__path__)), name], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded, above = done.stdout.splitlines()
    assert set(loaded.split()) <= BELOW[name] | {name}
    assert above == ""


NAMES = {
    "S0.22": "Tensor TensorImpl OutputRefs ComputeGraph GRAPH driver_tensor_type Trace trace",
    "S0.23": "get_operations_topological get_all_impls_topological print_trace_graph"
    " apply_to_operations",
    "S0.24": "defaults default_device default_dtype defaults_like",
    "S0.25": "tree_map tree_flatten tree_unflatten tree_leaves tree_structure PyTreeDef",
    "S0.26": "tensor_leaves traced untraced",
}


def check(number: str) -> None:
    missing = [name for name in NAMES[number].split() if not hasattr(weft.core, name)]
    assert missing == []
    assert set(NAMES[number].split()) <= set(weft.core.__all__)


@pytest.mark.promise("S0.22")
def test_the_core_exports_tensors_and_graphs():
    check("S0.22")


@pytest.mark.promise("S0.23")
def test_the_core_exports_walks_over_graphs():
    check("S0.23")


@pytest.mark.promise("S0.24")
def test_the_core_exports_defaults():
    check("S0.24")


@pytest.mark.promise("S0.25")
def test_the_core_exports_trees():
    check("S0.25")


@pytest.mark.promise("S0.26")
def test_the_core_exports_tracing_and_transforms_are_at_the_top():
    check("S0.26")
    assert all(
        hasattr(wf, name)
        for name in ("grad", "value_and_grad", "vjp", "jvp", "vmap", "with_batch_dims")
    )
