"""The demo's model and its training, written in torch: same names, same order, same defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.torch_oracle import torch
from weft.demo import Settings

nn, functional = torch.nn, torch.nn.functional


def rotary(x: Any) -> Any:
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (torch.arange(half) * (-1 / half))
    angles = torch.arange(x.shape[-2])[:, None] * speeds
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        for name in ("query", "key", "value", "output"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.heads = heads

    def forward(self, x: Any) -> Any:
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for f in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.output(mixed.transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, settings: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.width)
        self.blocks = nn.ModuleList(
            Block(settings.width, settings.heads) for _ in range(settings.layers)
        )
        self.norm = nn.RMSNorm(settings.width)
        self.head = nn.Linear(settings.width, vocabulary, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Trainer:
    """Steps of the model in torch, at the rates that weft's schedule gives."""

    def __init__(self, vocabulary: int, settings: Settings, state: dict[str, Any]) -> None:
        self.model = GPT(vocabulary, settings)
        self.model.load_state_dict({name: torch.tensor(x.numpy()) for name, x in state.items()})
        decayed = [p for p in self.model.parameters() if p.ndim >= 2]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1)

    def advance(self, ids: Any, following: Any, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        scores = self.model(torch.tensor(ids))
        loss = functional.cross_entropy(scores.transpose(1, 2), torch.tensor(following).long())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def losses(trainer: Trainer, batches: Iterable[Any], rates: Iterable[float]) -> list[float]:
    return [
        trainer.advance(ids.numpy(), following.numpy(), rate)
        for (ids, following), rate in zip(batches, rates)
    ]
