"""What other libraries call what weft has under another name: hints for names that are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common.slots import FUNCTIONS

# NumPy's, JAX's and torch's names for what a module of weft has.
NAMES = {
    "Adadelta": "wf.optim.adadelta()",
    "Adafactor": "wf.optim.adafactor()",
    "Adagrad": "wf.optim.adagrad(rate)",
    "Adam": "wf.optim.adam(rate)",
    "AdamW": "wf.optim.adamw(rate)",
    "Adamax": "wf.optim.adamax(rate)",
    "BCELoss": "wf.binary_cross_entropy",
    "BCEWithLogitsLoss": "wf.binary_cross_entropy_with_logits",
    "BatchNorm1d": "wf.nn.BatchNorm",
    "BatchNorm2d": "wf.nn.BatchNorm",
    "BatchNorm3d": "wf.nn.BatchNorm",
    "Buffer": "a field declared as `name: wf.Tensor = wf.nn.buffer()`",
    "CTCLoss": "wf.ctc_loss",
    "CrossEntropyLoss": "wf.cross_entropy",
    "DataLoader": "wf.data.Loader(data, batch_size, key=key)",
    "DropPath": "x * wf.dropout(wf.ones((x.shape[0], 1, 1)), rate, key)",
    "Dropout1d": "wf.nn.Dropout(rate, whole_features=True)",
    "Dropout2d": "wf.nn.Dropout(rate, whole_features=True)",
    "Dropout3d": "wf.nn.Dropout(rate, whole_features=True)",
    "ELU": "wf.nn.elu, which stands among layers as it is",
    "GELU": "wf.nn.gelu, which stands among layers as it is",
    "GradScaler": "wf.optim.loss_scaled",
    "HuberLoss": "wf.huber_loss",
    "InstanceNorm1d": "wf.nn.InstanceNorm",
    "InstanceNorm2d": "wf.nn.InstanceNorm",
    "InstanceNorm3d": "wf.nn.InstanceNorm",
    "KLDivLoss": "wf.kl_div",
    "L1Loss": "wf.l1_loss",
    "LBFGS": "wf.optim.lbfgs(), wf.optim.minimize",
    "LeakyReLU": "wf.nn.leaky_relu, which stands among layers as it is",
    "LogSoftmax": "wf.nn.log_softmax",
    "MSELoss": "wf.mse_loss",
    "Mish": "wf.nn.mish, which stands among layers as it is",
    "ModuleDict": "a dict of modules",
    "ModuleList": "a tuple or list of modules",
    "MultiSteps": "wf.optim.accumulate(transform, every)",
    "MultiheadAttention": "wf.nn.MultiHeadAttention",
    "Muon": "wf.optim.muon(rate)",
    "NAdam": "wf.optim.nadam(rate)",
    "NLLLoss": "wf.nll_loss",
    "PRNGKey": "wf.random.key(seed)",
    "Parameter": "a tensor in a field of a wf.nn.Module",
    "PixelShuffle": "lambda x: wf.pixel_shuffle(x, factor), which may stand among layers",
    "RAdam": "wf.optim.radam(rate)",
    "RMSprop": "wf.optim.rmsprop(rate)",
    "ReLU": "wf.nn.relu, which stands among layers as it is",
    "ReflectionPad2d": 'lambda x: wf.pad(x, widths, mode="reflect")',
    "SGD": "wf.optim.sgd(rate)",
    "SiLU": "wf.nn.silu, which stands among layers as it is",
    "Sigmoid": "wf.nn.sigmoid, which stands among layers as it is",
    "SmoothL1Loss": "wf.smooth_l1_loss",
    "Softmax": "wf.nn.softmax",
    "Softplus": "wf.nn.softplus, which stands among layers as it is",
    "SyncBatchNorm": "wf.nn.BatchNorm: over a mesh its statistics are those of the whole batch",
    "Tanh": "wf.nn.tanh, which stands among layers as it is",
    "Transformer": "lists of wf.nn.TransformerEncoderLayer and wf.nn.TransformerDecoderLayer",
    "TransformerDecoder": "a list of wf.nn.TransformerDecoderLayer",
    "TransformerEncoder": "a list of wf.nn.TransformerEncoderLayer",
    "Unflatten": "lambda x: wf.unflatten(x, axis, sizes), which may stand among layers",
    "ZeroPad2d": "lambda x: wf.pad(x, widths), which may stand among layers",
    "amp": "wf.nn.Policy, wf.optim.loss_scaled",
    "apply_updates": "wf.optim.apply",
    "autocast": "wf.nn.Policy",
    "autograd": "wf.grad, wf.custom_vjp",
    "block_until_ready": "wf.realize",
    "bmm": "wf.matmul",
    "cat": "wf.concat",
    "clip_grad_norm_": "wf.optim.clip_by_global_norm(limit)",
    "clip_grad_value_": "wf.optim.clip_by_value(limit)",
    "copyto": "x[...] = values",
    "cosine_decay_schedule": "wf.optim.schedules.cosine",
    "default_rng": "wf.random.Generator(seed), or wf.random.key(seed)",
    "device_put": "x.to_device(device), or wf.shard(x, mesh, spec)",
    "double": "wf.float64",
    "errstate": "wf.debug_nans; no warnings are raised",
    "exponential_decay": "wf.optim.schedules.exponential",
    "filter_grad": "wf.grad",
    "filter_jit": "wf.compile",
    "float": "wf.float32",
    "func": "wf.grad, wf.vmap",
    "functional": "wf.relu and others are wf's own",
    "half": "wf.float16",
    "incremental_update": "wf.optim.ema",
    "index_add": "x.at[index].add(values)",
    "index_copy": "x.at[index].set(values)",
    "initializers": "wf.nn.init",
    "iota": "wf.arange",
    "jacobian": "wf.jacrev, wf.jacfwd",
    "join_schedules": "wf.optim.schedules.join",
    "lax": "wf.scan, wf.cond and others are wf's own",
    "linear_schedule": "wf.optim.schedules.linear",
    "load": "wf.load_safetensors, or wf.asarray(np.load(file))",
    "loadtxt": "wf.asarray(np.loadtxt(file))",
    "long": "wf.int64",
    "lr_scheduler": "wf.optim.schedules",
    "make_jaxpr": "wf.trace",
    "make_mesh": "wf.DeviceMesh",
    "manual_seed": "wf.random.seed",
    "masked": "wf.optim.split(mask, transform, wf.optim.scale(1.0))",
    "masked_select": "x[mask]",
    "mm": "wf.matmul",
    "multi_transform": "wf.optim.split(mask, chosen, others)",
    "ndarray": "wf.Tensor",
    "ndindex": "np.ndindex(x.shape)",
    "nditer": "wf.ravel",
    "numel": "wf.size",
    "numpy": "wf.sum and others are wf's own",
    "piecewise_constant_schedule": "wf.optim.schedules.piecewise",
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
    "spectral_norm": "wf.nn.SpectralNorm(layer, key=key)",
    "swa_utils": "wf.optim.ema",
    "tensor_split": "wf.array_split",
    "topk": "wf.top_k",
    "tree": "wf.tree_map, wf.tree_leaves",
    "tree_at": "module.replace(...), wf.nn.update_where",
    "tree_util": "wf.tree_map, wf.tree_leaves",
    "utils": "wf.optim.clip_by_global_norm, wf.tree_ravel",
    "warmup_cosine_decay_schedule": "wf.optim.schedules.warmup_cosine",
    "weight_norm": "wf.nn.WeightNorm(layer)",
}
# The same for attributes of tensors; functions of weft that are no methods need no row.
ATTRIBUTES = {
    "block_until_ready": "wf.realize(x)",
    "bool": 'x.astype("bool")',
    "clamp": "x.clip(low, high)",
    "clone": "x.copy()",
    "copy_": "x[...] = values",
    "cpu": "x.numpy()",
    "cuda": "x.to_device(device)",
    "dim": "x.ndim",
    "double": 'x.astype("float64")',
    "eq": "x == y",
    "expand_as": "x.expand(y.shape)",
    "fill": "x[...] = value",
    "fill_": "x[...] = value",
    "flat": "x.ravel()",
    "float": 'x.astype("float32")',
    "ge": "x >= y",
    "gt": "x > y",
    "half": 'x.astype("float16")',
    "index_add_": "x.at[index].add(values)",
    "int": 'x.astype("int32")',
    "is_cuda": "x.device",
    "le": "x <= y",
    "long": 'x.astype("int64")',
    "lt": "x < y",
    "masked_select": "x[mask]",
    "mm": "x @ y",
    "mul": "x * y",
    "ne": "x != y",
    "new_ones": "wf.ones(shape, dtype=x.dtype)",
    "new_zeros": "wf.zeros(shape, dtype=x.dtype)",
    "numel": "x.size",
    "requires_grad_": "x.requires_grad = True",
    "resize": "wf.resize(x, shape)",
    "scatter_add_": "x = wf.scatter_add(x, …)",
    "t": "x.T",
    "topk": "x.top_k(k)",
    "type_as": "x.astype(y.dtype)",
    "view_as": "x.reshape(y.shape)",
    "zero_": "x[...] = 0",
}


def hint_for_name(name: str) -> str:
    """What to write instead of a name that a module lacks, as the end of a message."""
    found = NAMES.get(name)
    if found is None and name in FUNCTIONS:
        found = f"wf.{name}"
    return "" if found is None else f"\nhint: {found}"


def refuse(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: an error that says what weft calls what is missing."""

    def missing(name: str) -> Any:
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint_for_name(name)}")

    return missing


def hint_for_attribute(name: str) -> str:
    """What to write instead of an attribute that tensors lack, as the end of a message."""
    found = ATTRIBUTES.get(name)
    if found is None and name in FUNCTIONS:
        found = f"wf.{name}(x, …)"
    if found is None and name.endswith("_") and name[:-1] in FUNCTIONS:
        found = f"x = wf.{name[:-1]}(x, …)"
    return "" if found is None else f"\nhint: {found}"
