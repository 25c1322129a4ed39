"""Modules, layers, losses and initial values: `wf.nn`. A model is a tree of tensors.

A `Module` is a frozen dataclass whose tensors are leaves, so that `wf.grad`, `wf.vmap`,
`wf.compile` and `wf.tree_map` take models as they take tensors. Weights have torch's names, shapes
and defaults. Nothing is hidden: random numbers come from keys, and what a layer learns from a call
it returns.

    model = nn.MLP(784, (256, 256), 10, key=wf.random.key(0))
    gradient = wf.grad(lambda m: nn.losses.cross_entropy(m(x), y))(model)

| file | what lives in it |
|---|---|
| `module` | `Module`, `static`, `buffer`, `map_modules`, `modules` |
| `basic` | `Linear`, `Embedding`, `EmbeddingBag`, `Dropout`, `MLP`, `Sequential`, `Apply`, … |
| `convolution` | `Conv1d`, `Conv2d`, `Conv3d` and their transposes `ConvTranspose1d`, … |
| `pooling` | `MaxPool1d`, `MaxUnpool1d`, `AvgPool1d`, `AdaptiveAvgPool1d`, …, `Upsample` |
| `normalization` | `LayerNorm`, `RMSNorm`, `GroupNorm`, `InstanceNorm`, `BatchNorm` |
| `reparametrization` | `SpectralNorm`, `WeightNorm` |
| `attention` | `MultiHeadAttention`, `KVCache`, `rotary` |
| `transformer` | `TransformerEncoderLayer`, `TransformerDecoderLayer` |
| `recurrent` | `RNN`, `GRU`, `LSTM`, `RNNCell`, `GRUCell`, `LSTMCell` |
| `init` | initial values: Glorot, He, LeCun, orthogonal, … |
| `losses` | losses by short names: `mse`, `cross_entropy`, `bce_with_logits`, `kl`, … |
| `parameters` | `partition`, `combine`, `is_parameter`, `parameter_count`, `inference`, … |
| `state` | `state_dict`, `load_state_dict` |
| `names` | the leaves of a tree with dotted names |
| `lora` | `lora`, `merge_lora`, `is_lora`, `LoRALinear` |
| `policy` | `Policy`: the dtype of parameters, computation and results |
| `summary` | `summary`: a model as a table |
| `show` | a module as text |
| `inputs` | checks of what layers are given |

Activations (`relu`, `gelu`, `silu`, `softmax`, …) and poolings of `wf` are here as well; `unfold`
and `fold` make columns of patches, and images of columns.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.core.common.peers import refuse as _refuse
from weft.nn import init as init
from weft.nn import losses as losses
from weft.nn.attention import KVCache, MultiHeadAttention, rotary
from weft.nn.basic import (
    MLP,
    Apply,
    Dropout,
    Embedding,
    EmbeddingBag,
    Flatten,
    Identity,
    Linear,
    PReLU,
    Sequential,
)
from weft.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from weft.nn.lora import LoRALinear, is_lora, lora, merge_lora
from weft.nn.module import Module, buffer, map_modules, modules, static
from weft.nn.names import Entry
from weft.nn.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from weft.nn.parameters import (
    combine,
    inference,
    is_parameter,
    parameter_count,
    parameters,
    partition,
    update_where,
)
from weft.nn.policy import Policy
from weft.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    Upsample,
)
from weft.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from weft.nn.reparametrization import SpectralNorm, WeightNorm
from weft.nn.state import load_state_dict, state_dict
from weft.nn.summary import summary
from weft.nn.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from weft.ops.elementwise.elementary import log_sigmoid, sigmoid, tanh
from weft.ops.exponential_sums import log_softmax, softmax
from weft.ops.nn.activation import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_swish,
    hardshrink,
    hardtanh,
    leaky_relu,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    silu,
    softplus,
    softshrink,
    softsign,
    swiglu,
    swish,
    tanhshrink,
)
from weft.ops.nn.bags import embedding_bag
from weft.ops.nn.normalization import gumbel_softmax
from weft.ops.nn.patches import fold, unfold
from weft.ops.nn.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from weft.ops.nn.unpooling import max_unpool1d, max_unpool2d, max_unpool3d

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "Apply",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Entry",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "KVCache",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LoRALinear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Module",
    "MultiHeadAttention",
    "PReLU",
    "Policy",
    "RMSNorm",
    "RNNCell",
    "Sequential",
    "SpectralNorm",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "Upsample",
    "WeightNorm",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "buffer",
    "celu",
    "combine",
    "elu",
    "embedding_bag",
    "fold",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hard_sigmoid",
    "hard_swish",
    "hardshrink",
    "hardtanh",
    "inference",
    "init",
    "is_lora",
    "is_parameter",
    "leaky_relu",
    "load_state_dict",
    "log_sigmoid",
    "log_softmax",
    "lora",
    "losses",
    "map_modules",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "merge_lora",
    "mish",
    "modules",
    "parameter_count",
    "parameters",
    "partition",
    "prelu",
    "relu",
    "relu6",
    "rotary",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softshrink",
    "softsign",
    "state_dict",
    "static",
    "summary",
    "swiglu",
    "swish",
    "tanh",
    "tanhshrink",
    "unfold",
    "update_where",
]

if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.nn")
