"""weft: tensors, transforms and a compiler in plain Python."""

from weft.core.common.context import default_device, default_dtype, defaults, defaults_like
from weft.core.common.trees import (
    PyTreeDef,
    register_dataclass,
    register_tree,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_paths,
    tree_structure,
    tree_unflatten,
)
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import eval_shape, tensor_leaves, trace, traced, untraced
from weft.ops import dispatch as _dispatch
from weft.ops import random_bits as _random_bits
from weft.ops.arithmetic import *
from weft.ops.comparison import *
from weft.ops.contraction import *
from weft.ops.creation import *
from weft.ops.elementary import *
from weft.ops.indexing import *
from weft.ops.order import *
from weft.ops.reduction import *
from weft.ops.view.broadcast import *
from weft.ops.view.join import *
from weft.ops.view.reshape import *
from weft.ops.view.slice import *
from weft.ops.view.transpose import *
from weft.runtime.registry import client
from weft.transforms.jvp import jvp
from weft.transforms.vjp import grad, value_and_grad, vjp
from weft.transforms.vmap import vmap
