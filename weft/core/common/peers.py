"""What other libraries call what weft has under another name: hints for names that are missing."""

from __future__ import annotations

from weft.core.common.slots import FUNCTIONS

# NumPy's, JAX's and torch's names for what a module of weft has.
NAMES = {
    "PRNGKey": "wf.random.key(seed)",
    "autograd": "wf.grad, wf.custom_vjp",
    "bmm": "wf.matmul",
    "cat": "wf.concat",
    "copyto": "x[...] = values",
    "default_rng": "wf.random.Generator(seed), or wf.random.key(seed)",
    "double": "wf.float64",
    "errstate": "wf.debug_nans; no warnings are raised",
    "float": "wf.float32",
    "func": "wf.grad, wf.vmap",
    "functional": "wf.relu and others are wf's own",
    "half": "wf.float16",
    "jacobian": "wf.jacrev, wf.jacfwd",
    "lax": "wf.scan, wf.cond and others are wf's own",
    "load": "wf.load_safetensors, or wf.asarray(np.load(file))",
    "loadtxt": "wf.asarray(np.loadtxt(file))",
    "long": "wf.int64",
    "make_jaxpr": "wf.trace",
    "manual_seed": "wf.random.seed",
    "mm": "wf.matmul",
    "ndarray": "wf.Tensor",
    "ndindex": "np.ndindex(x.shape)",
    "nditer": "wf.ravel",
    "numel": "wf.size",
    "numpy": "wf.sum and others are wf's own",
    "pmap": "wf.shard_map",
    "printoptions": "np.printoptions, which weft follows",
    "pure_callback": "wf.callback",
    "rand": "wf.rand",
    "rand_like": "wf.rand(*x.shape)",
    "randint": "wf.random.randint",
    "randn": "wf.randn",
    "randn_like": "wf.randn(*x.shape)",
    "randperm": "wf.random.permutation",
    "repeat_interleave": "wf.repeat",
    "save": "wf.save_safetensors, or np.save",
    "savez": "wf.save_safetensors, or np.savez",
    "set_printoptions": "np.set_printoptions, which weft follows",
    "topk": "wf.top_k",
    "tree": "wf.tree_map, wf.tree_leaves",
    "tree_util": "wf.tree_map, wf.tree_leaves",
}
# The same for attributes of tensors; functions of weft that are no methods need no row.
ATTRIBUTES = {
    "block_until_ready": "wf.realize(x)",
    "bool": 'x.astype("bool")',
    "clone": "x.copy()",
    "copy_": "x[...] = values",
    "cpu": "x.numpy()",
    "cuda": "x.to_device(device)",
    "dim": "x.ndim",
    "double": 'x.astype("float64")',
    "eq": "x == y",
    "fill": "x[...] = value",
    "fill_": "x[...] = value",
    "flat": "x.ravel()",
    "float": 'x.astype("float32")',
    "ge": "x >= y",
    "gt": "x > y",
    "half": 'x.astype("float16")',
    "int": 'x.astype("int32")',
    "le": "x <= y",
    "long": 'x.astype("int64")',
    "lt": "x < y",
    "mm": "x @ y",
    "ne": "x != y",
    "numel": "x.size",
    "requires_grad_": "x.requires_grad = True",
    "resize": "wf.resize(x, shape)",
    "t": "x.T",
    "topk": "x.top_k(k)",
    "type_as": "x.astype(y.dtype)",
    "zero_": "x[...] = 0",
}


def hint_for_name(name: str) -> str:
    """What to write instead of a name that a module lacks, as the end of a message."""
    return f"\nhint: {NAMES[name]}" if name in NAMES else ""


def hint_for_attribute(name: str) -> str:
    """What to write instead of an attribute that tensors lack, as the end of a message."""
    found = ATTRIBUTES.get(name)
    if found is None and name in FUNCTIONS:
        found = f"wf.{name}(x, …)"
    if found is None and name.endswith("_") and name[:-1] in FUNCTIONS:
        found = f"x = wf.{name[:-1]}(x, …)"
    return "" if found is None else f"\nhint: {found}"
