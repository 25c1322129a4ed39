"""Weights cross between torch and weft as safetensors, both ways, and the logits agree.

You learn that layers of `weft.nn` have torch's names, shapes and defaults, so a state dict fits as
it is. Without torch, weft writes the file too, and the way through the file is what is checked.
"""

import tempfile
from pathlib import Path

import numpy as np

import weft as wf
from weft import nn

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    torch = None

VOCABULARY, WIDTH, HEADS, LENGTH = 50, 32, 4, 12


class TinyGPT(nn.Module):
    """An embedding, two causal transformer layers, a head: torch's names throughout."""

    embedding: nn.Embedding
    positions: nn.Embedding
    layers: list
    head: nn.Linear

    def __init__(self, key):
        keys = wf.random.split(key, 5)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.positions = nn.Embedding(LENGTH, WIDTH, key=keys[1])
        self.layers = [
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 64, 0.0, wf.gelu, norm_first=True, is_causal=True, key=k
            )
            for k in keys[2:4]
        ]
        self.head = nn.Linear(WIDTH, VOCABULARY, key=keys[4])

    def __call__(self, tokens):
        x = self.embedding(tokens) + self.positions(wf.arange(tokens.shape[-1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def torch_gpt():
    """The same model, as torch has it."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.positions = torch.nn.Embedding(LENGTH, WIDTH)
            self.layers = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(
                    WIDTH, HEADS, 64, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(2)
            )
            self.head = torch.nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens):
            x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[-1]))
            mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[-1])
            for layer in self.layers:
                x = layer(x, src_mask=mask, is_causal=True)
            return self.head(x)

    torch.manual_seed(0)
    return Model().eval()


tokens = wf.random.randint(wf.random.key(1), (3, LENGTH), 0, VOCABULARY)
with tempfile.TemporaryDirectory() as folder:
    there, back = Path(folder) / "there.safetensors", Path(folder) / "back.safetensors"
    mine = TinyGPT(wf.random.key(0))
    if torch is None:
        print("torch is not here: weft writes the weights itself")
        source = TinyGPT(wf.random.key(7))
        wf.save_safetensors(there, nn.state_dict(source))
        wanted = source(tokens).numpy()
    else:
        theirs = torch_gpt()
        save_file(theirs.state_dict(), there)
        with torch.no_grad():
            wanted = theirs(torch.from_numpy(tokens.numpy().copy())).numpy()

    # There: a file of another library's weights, into this model.
    loaded = nn.load_state_dict(mine, wf.load_safetensors(there))
    difference = np.abs(loaded(tokens).numpy() - wanted).max()
    print(f"{nn.parameter_count(loaded)} numbers read, logits differ by {difference:.1e}")
    assert difference < 1e-4
    assert np.abs(mine(tokens).numpy() - wanted).max() > 0.1, "it was the weights that did it"

    # Back: this model's weights, into the other library.
    wf.save_safetensors(back, nn.state_dict(mine))
    if torch is None:
        again = nn.load_state_dict(source, wf.load_safetensors(back))(tokens).numpy()
    else:
        theirs.load_state_dict(load_file(back))
        with torch.no_grad():
            again = theirs(torch.from_numpy(tokens.numpy().copy())).numpy()
    difference = np.abs(mine(tokens).numpy() - again).max()
    print(f"and back: logits differ by {difference:.1e}")
    assert difference < 1e-4
