"""Write the pages of the API reference: docs/api/*.md, one for each namespace.

    python tools/api_pages.py

Pages are made of signatures and docstrings, which are Markdown. The build of the site runs this;
the pages are not kept in the repository.
"""

from __future__ import annotations

import enum
import inspect
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

import numpy as np

import weft as wf
from weft import checkpoints, data, errors, fft, linalg, nn, optim, random, transforms
from weft.core import sharding
from weft.core.common.slots import FUNCTIONS
from weft.nn import init, losses
from weft.ops.communication import collectives, layout
from weft.optim import schedules
from weft.transforms import checkpoint_policies, planning

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "api"


# Headings of the page of `wf`, each with the modules its names are defined in.
SECTIONS = {
    "Tensors and types": "core.tensor core.common.types core.common.dtypes core.common.device",
    "New tensors": "ops.creation ops.ranges ops.random",
    "Functions of each element": "ops.elementwise ops.packing",
    "Sums, extrema and statistics": (
        "ops.reduction ops.statistics ops.exponential_sums ops.quantiles ops.norms ops.multi_output"
    ),
    "Curves and polynomials": "ops.curves polynomial",
    "Products": "ops.contraction ops.einsum",
    "Shapes and views": "ops.view ops.manipulation ops.padding ops.diagonals ops.facts",
    "Indices, choice and updates": "ops.indexing ops.index_update ops.selection ops.gather",
    "Order and search": "ops.order ops.search ops.histograms",
    "Parts of models": "ops.nn",
    "Loops, branches and functions of one's own": "ops.control",
    "Names of mapped axes": "ops.named_axis",
    "Gradients without functions": "core.autograd",
    "Trees, traces and settings": "core.common core.graph",
    "Plans for meshes": "transforms.planning",
    "Devices and memory": "runtime",
    "Files": "safetensors",
}
OTHER = "Constants and others"


@dataclass(frozen=True)
class Namespace:
    """A page: the names it lists, where they are found, and what to say above them."""

    file: str
    title: str
    prefix: str
    modules: tuple[Any, ...]
    without: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The public names, sorted without regard to case."""
        found: set[str] = set()
        for module in self.modules:
            names = getattr(module, "__all__", None) or [
                name
                for name in dir(module)
                if not (name.startswith("_") or inspect.ismodule(getattr(module, name)))
            ]
            found |= {name for name in names if not inspect.ismodule(getattr(module, name))}
        return sorted(found - set(self.without), key=str.lower)

    def value(self, name: str) -> Any:
        """What a name stands for."""
        return next(getattr(m, name) for m in self.modules if hasattr(m, name))


_TRANSFORMS = Namespace("transforms", "Transforms", "wf", (transforms,))
_SHARDING = Namespace("sharding", "Meshes", "wf", (sharding, layout, collectives))
_APART = (*_TRANSFORMS.names(), *_SHARDING.names(), "annotations")
_PLANNED = (*_APART, "Plan", "plan")  # these are names of `wf`
NAMESPACES = (
    Namespace("wf", "wf: tensors and functions of them", "wf", (wf,), _APART),
    _TRANSFORMS,
    _SHARDING,
    Namespace("planning", "Planning", "weft.transforms.planning", (planning,), _PLANNED),
    Namespace("linalg", "wf.linalg: linear algebra", "wf.linalg", (linalg,)),
    Namespace("fft", "wf.fft: Fourier transforms", "wf.fft", (fft,)),
    Namespace("random", "wf.random: random numbers", "wf.random", (random,)),
    Namespace("nn", "wf.nn: models", "wf.nn", (nn,)),
    Namespace("init", "wf.nn.init: initial values", "wf.nn.init", (init,)),
    Namespace("losses", "wf.nn.losses: losses", "wf.nn.losses", (losses,)),
    Namespace("optim", "wf.optim: optimisers", "wf.optim", (optim,)),
    Namespace("schedules", "wf.optim.schedules: rates", "wf.optim.schedules", (schedules,)),
    Namespace("data", "wf.data: batches", "wf.data", (data,)),
    Namespace("checkpoints", "wf.checkpoints: trees on disk", "wf.checkpoints", (checkpoints,)),
    Namespace(
        "checkpoint_policies",
        "wf.checkpoint_policies: what is kept",
        "wf.checkpoint_policies",
        (checkpoint_policies,),
    ),
    Namespace("errors", "wf.errors: exceptions", "wf.errors", (errors,), ("annotations",)),
)


def signature(value: Any) -> str:
    """A signature as Sphinx reads it: annotations without quotes, defaults that can be parsed."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = []
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.default is not parameter.empty:
            parameter = parameter.replace(default=_Plain(parameter.default))
        if not isinstance(parameter.annotation, str) or parameter.annotation == "Any":
            parameter = parameter.replace(annotation=parameter.empty)
        parameters.append(parameter)
    result = found.return_annotation
    if not isinstance(result, str) or result in ("Any", "None"):
        result = found.empty
    text = str(found.replace(parameters=parameters, return_annotation=result))
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


class _Plain:
    """A default value, written so that it is Python."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, bool | int | float | str | tuple | None):
            return repr(value)
        if isinstance(value, np.dtype):
            return value.name
        if isinstance(value, enum.Enum):
            return str(value)
        return "..."


def docstring(value: Any) -> str:
    """A docstring as Markdown: examples become blocks."""
    text = inspect.getdoc(value) or ""
    made, example = [], False
    for line in text.splitlines():
        begins = line.startswith(">>>")
        if begins and not example:
            made.append("```pycon")
        elif example and not line.strip():
            made.append("```")
        example = begins or (example and bool(line.strip()))
        made.append(line)
    if example:
        made.append("```")
    return "\n".join(made)


def directive(kind: str, title: str, body: str, fence: str) -> str:
    """One entry: a directive of Sphinx's Python domain."""
    return f"{fence}{{py:{kind}}} {title}\n{body}\n{fence}\n"


def methods(value: type) -> Iterator[tuple[str, Any]]:
    """The documented methods and properties that a class itself defines, or takes from weft."""
    if not value.__module__.startswith("weft"):
        return
    hidden = dir(nn.Module) if issubclass(value, nn.Module) and value is not nn.Module else ()
    for name, member in inspect.getmembers(value):
        if name == "__call__" and issubclass(value, nn.Module):
            yield name, member
        if (
            name.startswith("_")
            or name in hidden
            or not (callable(member) or isinstance(member, property))
        ):
            continue
        maker = next(base for base in value.__mro__ if name in vars(base))
        own = maker.__module__.startswith("weft")
        if own and inspect.getdoc(member) and not inspect.isclass(member):
            yield name, member


def is_alias(value: Any) -> bool:
    """Whether a name stands for a type that is written with others, such as `Callable[…]`."""
    return value is Any or get_origin(value) is not None


class _Method:
    """A method of `Tensor` that is a function: with the signature and the words of that."""

    def __init__(self, method: Any, function: Any) -> None:
        found = inspect.signature(function)
        self.__signature__ = found.replace(parameters=list(found.parameters.values())[1:])
        self.__doc__ = f"{method.__doc__} {(inspect.getdoc(function) or '').splitlines()[0]}"

    def __call__(self) -> None:
        """Only its signature is of interest."""


def entry(name: str, value: Any, space: Namespace) -> str:
    """What a page says of one name."""
    title = f"{space.prefix}.{name}"
    if is_alias(value):
        text = str(value).replace("typing.", "").replace("collections.abc.", "")
        return directive(
            "data", title, f"The type `{re.sub(r'weft[.a-z]*[.]', '', text)}`.", "````"
        )
    if isinstance(value, type):
        kind = "exception" if issubclass(value, BaseException) else "class"
        inside = [docstring(value), ""]
        for each, member in methods(value) if kind == "class" else ():
            if (inspect.getdoc(member) or "").startswith("Method form"):
                member = _Method(member, FUNCTIONS[each])
            if isinstance(member, property):
                inside.append(directive("property", each, docstring(member), "```"))
            else:
                inside.append(
                    directive("method", each + signature(member), docstring(member), "````")
                )
        head = title if kind == "exception" else title + signature(value)
        return directive(kind, head, "\n".join(inside), "`````")
    if callable(value) and not isinstance(value, np.dtype):
        return directive("function", title + signature(value), docstring(value), "````")
    if isinstance(value, np.dtype):
        return directive("data", title, f"The dtype {value.name}.", "````")
    own = type(value).__module__.startswith("weft.")  # such as `mgrid`, which is indexed
    return directive("data", title, docstring(value) if own else f"`{value!r}`", "````")


def page(space: Namespace) -> str:
    """A namespace as a page."""
    text = [f"# {space.title}\n"]
    if space.prefix.startswith("wf."):
        text.append((inspect.getdoc(space.modules[0]) or "") + "\n")
    sections: dict[str, list[str]] = {}
    for name in space.names():
        heading = section(space.value(name)) if space.file == "wf" else ""
        sections.setdefault(heading, []).append(name)
    for heading in (*SECTIONS, OTHER) if space.file == "wf" else ("",):
        text += [f"## {heading}\n"] * bool(heading) + listed(space, sections.get(heading, []))
    return "\n".join(text)


def section(value: Any) -> str:
    """The heading of a value on the page of `wf`."""
    if isinstance(value, np.dtype):
        return "Tensors and types"
    kind = value if hasattr(value, "__module__") else type(value)
    place = str(kind.__module__).removeprefix("weft.")
    for heading, modules in SECTIONS.items():
        if any(place == m or place.startswith(m + ".") for m in modules.split()):
            return heading
    return OTHER


def listed(space: Namespace, names: list[str]) -> list[str]:
    """Entries; a second name for one value is a line that says so."""
    known: dict[int, str] = {}
    made = []
    for name in sorted(names, key=lambda n: (_own(space, n) != n, n.lower())):
        value = space.value(name)
        alias = known.setdefault(id(value), name)
        if alias != name and not isinstance(value, bool | int | float | None):
            text = f"The same as `{alias}`."
            made.append(directive("data", f"{space.prefix}.{name}", text, "````"))
        else:
            made.append(entry(name, value, space))
    return made


def _own(space: Namespace, name: str) -> str:
    """The name a value has for itself."""
    return str(getattr(space.value(name), "__name__", name))


def write() -> None:
    """Write all pages anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for space in NAMESPACES:
        (FOLDER / f"{space.file}.md").write_text(page(space))
    files = "\n".join(space.file for space in NAMESPACES)
    (FOLDER / "index.md").write_text(
        "# API\n\nEvery public name, from its signature and docstring. `import weft as wf`.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{files}\n```\n"
    )


if __name__ == "__main__":
    write()
