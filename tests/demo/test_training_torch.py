"""The demo's model learns as it does in torch, and its weights cross in files both ways."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from tests.demo import torch_gpt
from tests.demo.torch_gpt import Trainer, losses
from tests.torch_oracle import torch
from weft import nn, optim
from weft.demo import GPT, Settings, Training


@pytest.mark.slow
def test_the_first_twenty_losses_over_a_mesh_are_those_of_torch() -> None:
    settings = Settings(steps=40, batch=8, layers=2, width=32, heads=4, context=32)
    training = Training(settings, wf.DeviceMesh("demo", (2, 2), ("dp", "tp")))
    state = training.first_state()
    batches = list(islice(training.batches(state), 20))
    schedule = optim.schedules.warmup_cosine(settings.rate, settings.steps // 20, settings.steps)
    rates = [float(schedule(wf.tensor(i)).item()) for i in range(20)]
    trainer = Trainer(len(training.text.vocabulary), settings, nn.state_dict(state.model))
    wanted = losses(trainer, batches, rates)
    found = [training.advance(state, batch) for batch in batches]
    np.testing.assert_allclose(found, wanted, rtol=5e-5)
    assert found[-1] < found[0] - 0.5


def test_weights_cross_between_weft_and_torch_in_files(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch", reason="safetensors writes torch's file")
    settings = Settings(layers=2, width=32, heads=4, context=32)
    sizes = (30, settings.layers, settings.width, settings.heads, settings.context)
    theirs, mine = torch_gpt.GPT(30, settings), GPT(*sizes, key=wf.random.key(1))
    ids = wf.random.randint(wf.random.key(0), (2, 32), 0, 30)

    def scores() -> np.ndarray:
        with torch.no_grad():
            return theirs(torch.tensor(ids.numpy())).numpy()

    files.save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    loaded = nn.load_state_dict(mine, wf.load_safetensors(tmp_path / "theirs.safetensors"))
    np.testing.assert_allclose(loaded(ids).numpy(), scores(), rtol=1e-4, atol=1e-5)

    wf.save_safetensors(tmp_path / "mine.safetensors", nn.state_dict(mine))
    theirs.load_state_dict(files.load_file(tmp_path / "mine.safetensors"))
    np.testing.assert_allclose(mine(ids).numpy(), scores(), rtol=1e-4, atol=1e-5)
    assert np.abs(mine(ids).numpy() - loaded(ids).numpy()).max() > 0.1
