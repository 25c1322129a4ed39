"""Training as values: settings, a state that can be saved, and a compiled step between states.

The same lines train on one device, over a mesh, and over processes: where tensors lie is decided
when they are made, and every op follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import weft as wf
from weft import nn, optim
from weft.demo.model import GPT, laid_out
from weft.errors import ArgumentError

VALIDATION_BATCHES = 8


@dataclass(frozen=True)
class Settings:
    """What a run computes; where it runs (mesh, processes, folder) makes no difference to it."""

    steps: int = 600
    batch: int = 16
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    dtype: str = "float32"
    rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "layers", "width", "heads", "context"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"demo: --{name}: at least 1, got {getattr(self, name)}")
        if not 0 < self.rate < 1:
            raise ArgumentError(f"demo: --rate: between 0 and 1, got {self.rate}")
        if self.width % (2 * self.heads):
            raise ArgumentError(
                f"demo: --width: heads need an even number of features each, got width {self.width}"
                f" for {self.heads} heads\nhint: a multiple of {2 * self.heads}"
            )

    @property
    def interval(self) -> int:
        """Steps between two checkpoints, and between two looks at text the model never sees."""
        return max(1, self.steps // 8)

    @property
    def looks(self) -> list[int]:
        """The steps after which that is done; the last one is among them."""
        return [*range(self.interval, self.steps, self.interval), self.steps]


@dataclass
class State:
    """Everything a run goes on from."""

    model: GPT
    optimizer: Any
    losses: Any  # one a step; NaN for those to come
    validation: Any  # one for each look
    step: int
    loader: dict[str, int]


wf.register_dataclass(State)


class Training:
    """A run's data, its first state, and the functions that carry it on."""

    def __init__(self, settings: Settings, mesh: wf.DeviceMesh | None = None) -> None:
        self.settings, self.mesh = settings, mesh
        self.text = wf.data.CharText(wf.data.paradise_lost())
        train, held_back = self.text.split(0.9)
        size, key = settings.context, wf.random.key(settings.seed)
        self.model_key, data_key = wf.random.split(key)
        self.loader = wf.data.Loader(
            train.windows(size), settings.batch, key=data_key, drop_last=True
        )
        rows = VALIDATION_BATCHES * settings.batch
        unseen = [x[:rows] for x in held_back.windows(size, stride=size)]
        self._unseen = [
            tuple(wf.tensor(x[i : i + settings.batch]) for x in unseen)
            for i in range(0, len(unseen[0]), settings.batch)
        ]
        self.policy = nn.Policy(compute=settings.dtype)
        self.optimizer = optim.chain(
            optim.clip_by_global_norm(1.0),
            optim.adamw(
                optim.schedules.warmup_cosine(settings.rate, settings.steps // 20, settings.steps),
                betas=(0.9, 0.95),
                weight_decay=0.1,
                mask=optim.matrices,
            ),
        )

    def first_state(self) -> State:
        """The state before the first step."""
        s = self.settings
        model = laid_out(
            GPT(
                len(self.text.vocabulary), s.layers, s.width, s.heads, s.context, key=self.model_key
            ),
            self.mesh,
        )
        return State(
            model,
            self.optimizer.init(model),
            np.full(s.steps, np.nan, np.float32),
            np.full(len(s.looks), np.nan, np.float32),
            0,
            self.loader.state(),
        )

    def loss(self, model: GPT, ids: wf.Tensor, following: wf.Tensor) -> wf.Tensor:
        """How surprised the model is by each next character: the mean, in nats."""
        scores = self.policy.output(self.policy.cast(model)(ids))
        return nn.losses.cross_entropy(wf.swapaxes(scores, 1, 2), following)

    @cached_property
    def step(self) -> Callable[..., Any]:
        """One step of training, compiled; model and optimiser state give up their memory."""
        layout = wf.tree_map(lambda x: x.sharding, self.first_state().model)

        def step(model: GPT, state: Any, ids: wf.Tensor, following: wf.Tensor) -> Any:
            loss, gradients = wf.value_and_grad(self.loss)(model, ids, following)
            if self.mesh is not None:  # gradients are added up over `dp` here, once
                gradients = wf.tree_map(wf.reshard, gradients, layout)
            updates, state = self.optimizer.update(gradients, state, model)
            return loss, optim.apply(model, updates), state

        compiled: Callable[..., Any] = wf.compile(step, donate_argnums=(0, 1))
        return compiled

    def advance(self, state: State, batch: tuple[wf.Tensor, wf.Tensor]) -> float:
        """Take a step: `state` becomes the next one; the loss on the batch is returned."""
        loss, state.model, state.optimizer = self.step(*self.arguments(state, batch))
        state.losses[state.step] = loss.item()
        state.step += 1
        state.loader = self.loader.state()
        return float(state.losses[state.step - 1])

    def arguments(self, state: State, batch: tuple[wf.Tensor, wf.Tensor]) -> tuple[Any, ...]:
        """What a step takes."""
        return state.model, state.optimizer, *map(self.spread, batch)

    def batches(self, state: State) -> Iterator[Any]:
        """Batches without end, from where the state is."""
        return self.loader.restore(state.loader).forever()

    def spread(self, x: wf.Tensor) -> wf.Tensor:
        """A batch with its rows over the axis `dp` of the mesh."""
        return x if self.mesh is None else wf.shard(x, self.mesh, wf.P("dp"))

    @cached_property
    def measure(self) -> Callable[..., wf.Tensor]:
        """The loss without a step, compiled."""
        compiled: Callable[..., wf.Tensor] = wf.compile(self.loss, name="measure")
        return compiled

    def look(self, state: State) -> float:
        """The mean loss on text that the model has never seen; the state remembers it."""
        found = self.validate(state)
        state.validation[self.settings.looks.index(state.step)] = found
        return found

    def validate(self, state: State) -> float:
        """The mean loss on text that the model has never seen."""
        found = [
            self.measure(state.model, *map(self.spread, batch)).item() for batch in self._unseen
        ]
        return float(np.mean(found))
