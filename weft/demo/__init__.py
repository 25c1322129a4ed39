"""`weft demo`: train a language model from nothing on Paradise Lost, and read what it writes.

| file | what lives in it |
|---|---|
| `model` | `GPT`, a transformer over characters, and its layout over a mesh |
| `training` | `Settings`, `State`, `Training`: data, loss, the compiled step |
| `sampling` | `generate`: text from a model, in one compiled loop |
| `runs` | a whole run: begin or go on, train, save, show |
| `folder` | what a run leaves behind: checkpoints, pictures, a profile |
| `progress` | a bar, or lines |
| `options`, `__main__` | the command line |
"""

from weft.demo.model import GPT, laid_out
from weft.demo.runs import run
from weft.demo.sampling import generate
from weft.demo.training import Settings, State, Training

__all__ = ["GPT", "Settings", "State", "Training", "generate", "laid_out", "run"]
