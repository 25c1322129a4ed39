"""weft: tensors, transforms and a compiler in plain Python."""

from weft.core.common.dtypes import (
    bfloat16,
    can_cast,
    complex64,
    complex128,
    finfo,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from weft.core.common.dtypes import bool_ as bool
from weft.core.common.context import default_device, default_dtype, defaults, defaults_like
from weft.core.common.device import Device
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
from weft.core.graph.trace import Trace, print_trace_graph
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import eval_shape, tensor_leaves, trace, traced, untraced
from weft.ops import dispatch as _dispatch
from weft.ops.dispatch import realize
from weft.ops.random_draws import *
from weft.ops.activation import *
from weft.ops.arithmetic import *
from weft.ops.bitwise import *
from weft.ops.branches import *
from weft.ops.comparison import *
from weft.ops.complex_parts import *
from weft.ops.contraction import *
from weft.ops.convolution import *
from weft.ops.creation import *
from weft.ops.diagonals import *
from weft.ops.custom_op import *
from weft.ops.einsum import *
from weft.ops.elementary import *
from weft.ops.index_update import *
from weft.ops.indexing import *
from weft.ops.manipulation import *
from weft.ops.multi_output import *
from weft.ops.padding import *
from weft.ops.loops import *
from weft.ops.loss import *
from weft.ops.normalization import *
from weft.ops.norms import norm
from weft.ops.order import *
from weft.ops.pooling import *
from weft.ops.ranges import *
from weft.ops.reduction import *
from weft.ops.selection import *
from weft.ops.resample import *
from weft.ops.rounding import *
from weft.ops.special_functions import *
from weft.ops.gamma_functions import *
from weft.ops.search import *
from weft.ops.statistics import *
from weft.ops.view.broadcast import *
from weft.ops.view.join import *
from weft.ops.view.reshape import *
from weft.ops.view.slice import *
from weft.ops.view.transpose import *
from weft.ops.view.window import *
from weft.runtime.registry import client
from weft.runtime.report import memory_report
from weft.core.autograd.imperative import GradStore, backward, register_hook, requires_grad
from weft.core.sharding import DeviceMesh, P, PartitionSpec, ShardingSpec
from weft.ops.named_axis import *
from weft.transforms.callback import break_here as breakpoint
from weft.transforms.callback import callback
from weft.transforms.callback import print_values as print
from weft.transforms.checkpoint import checkpoint, remat
from weft.transforms.custom import custom_jvp, custom_vjp
from weft.transforms.debug import debug, debug_nans
from weft.transforms.jacobian import hessian, hvp, jacfwd, jacrev
from weft.transforms.jvp import jvp, linearize
from weft.transforms.stop import detach, no_grad, stop_gradient
from weft.transforms.vjp import grad, linear_transpose, value_and_grad, vjp
from weft.transforms.vmap import AxisSpec, vmap, with_batch_dims
from weft.namespace_info import *
from weft import fft, linalg, random
