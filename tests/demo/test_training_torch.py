"""The demo's model learns as it does when it is written in torch."""

from __future__ import annotations

from itertools import islice

import numpy as np

import weft as wf
from tests.demo.torch_gpt import Trainer, losses
from weft import nn, optim
from weft.demo import Settings, Training


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
