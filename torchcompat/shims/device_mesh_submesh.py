"""A mesh that was sliced out of a device mesh cannot be sliced again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import reproduce
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_RESOURCES = "torch.distributed.device_mesh:_MeshEnv"
_DIMS = f"{_RESOURCES}._get_slice_mesh_dims"
_CREATE = f"{_RESOURCES}.create_sub_mesh"
_REFUSAL = "Cannot create a submesh from a submesh."


def probe() -> Probe:
    """Look whether slicing still refuses a mesh that has a root other than itself."""
    if is_replaced(_DIMS) and is_replaced(_CREATE):
        return absent("a submesh is sliced like any mesh, by this shim", cured=True)
    dims, create = lookup(_DIMS, None), lookup(_CREATE, None)
    if not inspect.isfunction(dims):
        return absent("device meshes are sliced by layout")
    if _REFUSAL not in dims.__code__.co_consts:
        return absent("a submesh is sliced like any mesh")
    if not inspect.isfunction(create) or "child_to_root_mapping" not in create.__code__.co_names:
        return drifted("submeshes are made otherwise")
    return present("a mesh whose root is another mesh is not sliced")


def edits() -> Sequence[Edit]:
    """Slice a submesh as if it were a root, and note the true root."""

    def slice_dims(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def _get_slice_mesh_dims(self: Any, device_mesh: Any, mesh_dim_names: Any) -> Any:
            roots = self.child_to_root_mapping  # of this thread only
            if device_mesh not in roots:
                return original(self, device_mesh, mesh_dim_names)
            root = roots.pop(device_mesh)
            try:
                return original(self, device_mesh, mesh_dim_names)
            finally:
                roots[device_mesh] = root

        return _get_slice_mesh_dims

    def create(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def create_sub_mesh(self: Any, device_mesh: Any, *names_and_dims: Any, **named: Any) -> Any:
            root = self.get_root_mesh(device_mesh)
            made = original(self, device_mesh, *names_and_dims, **named)
            self.child_to_root_mapping[made] = root
            return made

        return create_sub_mesh

    return [ReplaceAttr(_DIMS, slice_dims), ReplaceAttr(_CREATE, create)]


def _must_be(mesh: Any, ranks: list[Any]) -> None:
    if mesh.mesh.tolist() != ranks:
        raise AssertionError(f"{mesh} has the ranks {mesh.mesh.tolist()}, not {ranks}")


def sliced_again() -> None:
    """``mesh["b", "c", "d"]["b", "d"]["d"]`` of sixteen ranks, and the groups of such meshes."""
    from torch.distributed.device_mesh import init_device_mesh

    with reproduce.fake_world(rank=13, size=16):
        mesh = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=("a", "b", "c", "d"))
        submesh = mesh["b", "c", "d"]
        _must_be(submesh["d"], [12, 13])
        _must_be(submesh["b"], [9, 13])
        _must_be(submesh["b", "d"], [[8, 9], [12, 13]])
        _must_be(submesh["b", "d"]["d"], [12, 13])
        for name in "bcd":
            if submesh[name].get_group() is not mesh.get_group(name):
                raise AssertionError(f"submesh[{name!r}] has a group of its own")
        try:
            submesh["a"]
        except KeyError:
            return
        raise AssertionError("a submesh was sliced along a dimension that it does not have")


def equal_mesh() -> None:
    """A mesh of its own that equals a submesh of another one is sliced."""
    from torch.distributed.device_mesh import init_device_mesh

    with reproduce.fake_world(rank=3, size=4):
        whole = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        _must_be(whole["dp", "tp"], [[0, 1], [2, 3]])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        _must_be(mesh["tp"], [2, 3])


def hybrid() -> None:
    """Hybrid sharding over two dimensions of a mesh with three; all ranks train alike."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    mesh: Any = init_device_mesh("cpu", (1, 2, 1), mesh_dim_names=("pp", "replicate", "shard"))
    fully_shard: Any = lookup("torch.distributed.fsdp:fully_shard")
    torch.manual_seed(0)
    models = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
    models[1].load_state_dict(models[0].state_dict())
    fully_shard(models[1], mesh=mesh["replicate", "shard"])
    mesh["replicate", "shard"]["shard"]
    want, got = (reproduce.train(model, reproduce.batches()) for model in models)
    reproduce.assert_same_training(got, want)


SHIM = Shim(
    key="device_mesh_submesh",
    summary="a mesh that was sliced out of a device mesh cannot be sliced again",
    symptom=(
        "RuntimeError: Cannot create a submesh from a submesh., from submesh['shard']; also from "
        "slicing a mesh that merely equals a submesh of another one"
    ),
    cause=(
        "Slicing is refused where the mesh is in the table of meshes that have a root, and that table "
        "is searched by equality."
    ),
    cure="A submesh is sliced like any other mesh, and its slices have its root.",
    upstream=("https://github.com/pytorch/pytorch/issues/143194",),
    affected=Affected(since="2.5.0", fixed_in=("2.9.0",)),
    modules=("torch.distributed.device_mesh",),
    probe=probe,
    edits=edits,
    reproducers=(
        *(
            Reproducer(
                name=name,
                run=run,
                expect=r"RuntimeError: Cannot create a submesh from a submesh",
                runnable=Affected(since="2.5.0"),
                needs="slices of any dimensions, in their order",
                preload=("torch.distributed.device_mesh",),
            )
            for name, run in (("sliced_again", sliced_again), ("equal_mesh", equal_mesh))
        ),
        Reproducer(
            name="hybrid",
            run=hybrid,
            expect=r"RuntimeError: Cannot create a submesh from a submesh",
            ranks=2,
            runnable=Affected(since="2.8.0"),
            needs="fully_shard on the CPU, and a gloo that averages",
            preload=("torch.distributed.fsdp", "torch._dynamo"),
        ),
    ),
    removable_when="the oldest torch you support is 2.9",
)
