"""A flattened dimension of a device mesh, sliced by its name, has the wrong ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..errors import TargetDriftError
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_MESH = "torch.distributed.device_mesh:DeviceMesh"
_SLICE = f"{_MESH}.__getitem__"
_FLATTEN = f"{_MESH}._flatten"
_RESOURCES = "torch.distributed.device_mesh:_mesh_resources"
_CONTIGUOUS = "Currently, this only allows slicing out a contiguous flattened dim."


def probe() -> Probe:
    """Look how the ranks of a flattened dimension are found."""
    if is_replaced(_SLICE):
        return absent("a flattened dimension is the mesh that was flattened, by this shim", cured=True)
    if not inspect.isfunction(lookup(_FLATTEN, None)):
        return absent("device meshes are not flattened")
    if not inspect.isfunction(lookup(_SLICE, None)):
        return drifted("device meshes are sliced by something else")
    by_layout = lookup(f"{_MESH}._get_slice_mesh_layout", None)
    if inspect.isfunction(by_layout):
        refused = _CONTIGUOUS in by_layout.__code__.co_consts
        if not refused:
            return absent("ranks come from the layout of what was flattened")
        return present("a flattened dimension is sliced only where it was contiguous")
    if hasattr(lookup(_RESOURCES, None), "root_to_flatten_mapping"):
        return present("ranks come from flattening everything between the first and the last dimension")
    return drifted("flattened meshes are kept elsewhere")


def _flattened(mesh: Any) -> Mapping[str, Any]:
    """The meshes that were flattened out of a root mesh, by their names."""
    own = getattr(mesh, "_flatten_mapping", None)
    if own is not None:
        return dict(own)
    tables: Any = lookup(f"{_RESOURCES}.root_to_flatten_mapping")
    return dict(tables.get(mesh, {}))


def edits() -> Sequence[Edit]:
    """Return the flattened mesh itself; check the ranks where other dimensions come with it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        if lookup(_FLATTEN, None) is None:
            raise TargetDriftError(_SLICE, "is of a mesh that cannot be flattened")

        @functools.wraps(original, updated=())
        def __getitem__(self: Any, mesh_dim_names: Any) -> Any:
            names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
            flattened = {
                name: mesh
                for name, mesh in _flattened(self).items()
                if name in names and name not in (self.mesh_dim_names or ())
            }
            if not flattened:
                return original(self, mesh_dim_names)
            if len(names) == 1:
                return flattened[names[0]]
            # On some builds an error of the list that is searched, here as on newer ones.
            try:
                made = original(self, names)
            except ValueError:
                made = None
            wrong = [name for name, mesh in flattened.items() if _line(made, names, name) != _all(mesh)]
            if wrong:
                raise NotImplementedError(
                    f"the dimension {wrong[0]!r} was flattened from dimensions that are not next to "
                    f"each other, and cannot be sliced with others: take mesh[{wrong[0]!r}] alone"
                )
            return made

        return __getitem__

    return [ReplaceAttr(_SLICE, make)]


def _line(mesh: Any, names: Sequence[str], name: str) -> list[int] | None:
    """The ranks along a dimension of a mesh through the current rank."""
    at = None if mesh is None else mesh.get_coordinate()
    if at is None:
        return None
    dim = names.index(name)
    index = tuple(slice(None) if i == dim else coordinate for i, coordinate in enumerate(at))
    return list(mesh.mesh[index].tolist())


def _all(mesh: Any) -> list[int]:
    return list(mesh.mesh.tolist())


# -- reproducers ---------------------------------------------------------------------


def apart() -> None:
    """Dimensions that are not next to each other, flattened: the same ranks by name."""
    _flatten_and_slice("a", "c")


def of_three() -> None:
    """Three dimensions flattened to one."""
    _flatten_and_slice("a", "b", "c")


def _flatten_and_slice(*names: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    with reproduce.fake_world(rank=13, size=16):
        mesh: Any = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=("a", "b", "c", "d"))
        flat = mesh[names]._flatten("flat")
        found = mesh["flat"]
        if found.mesh.tolist() != flat.mesh.tolist():
            raise AssertionError(f"flattened {flat.mesh.tolist()}, sliced {found.mesh.tolist()}")
        if found.get_group() is not flat.get_group() or found.get_local_rank() != flat.get_local_rank():
            raise AssertionError("the slice has another group, or another rank in it")


SHIM = Shim(
    key="device_mesh_flatten_slice",
    summary="a flattened dimension of a device mesh, sliced by its name, has the wrong ranks",
    symptom=(
        "No error up to 2.9.1: after mesh['a', 'c']._flatten('ac') the ranks of mesh['ac'] are others, "
        "and DTensors on it get other shards. From 2.10 on NotImplementedError: Currently, this only "
        "allows slicing out a contiguous flattened dim. On 2.5 also IndexError: Dimension out of range "
        "for three flattened dimensions"
    ),
    cause=(
        "The slice is computed anew from the whole mesh, by flattening everything from the first to the "
        "last of the dimensions. It has the group of the mesh that was flattened, but not its ranks."
    ),
    cure="Such a slice is the mesh that was flattened. Together with others it is refused where wrong.",
    upstream=(
        "https://github.com/pytorch/pytorch/pull/138945",
        "https://github.com/pytorch/pytorch/blob/v2.9.1/torch/distributed/device_mesh.py",
    ),
    affected=Affected(since="2.5.0", fixed_in=("2.13.0",)),
    modules=("torch.distributed.device_mesh",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="apart",
            run=apart,
            expect=r"AssertionError: flattened .*, sliced|NotImplementedError: Currently, this only",
            runnable=Affected(since="2.5.0"),
            needs="meshes that can be flattened",
            preload=("torch.distributed.device_mesh",),
        ),
        Reproducer(
            name="of_three",
            run=of_three,
            expect=r"IndexError: Dimension out of range",
            affected=Affected(since="2.5.0", fixed_in=("2.6.0",)),
            runnable=Affected(since="2.5.0"),
            needs="meshes that can be flattened",
            preload=("torch.distributed.device_mesh",),
        ),
    ),
    removable_when="the oldest torch you support is 2.13",
    notes="A submesh has no flattened dimensions, as on newer builds.",
)
