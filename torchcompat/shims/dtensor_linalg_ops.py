"""DTensor has no sharding strategy for matrix decompositions, Fourier transforms and grid_sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import reproduce
from ..dtensor import HANDLERS, SINGLE_DIM
from ..edits import AddEntries, Edit
from ..factored import factored
from ..gate import Affected
from ..handlers import handler, is_ours, moved, with_other_arguments
from ..missing_ops import Groups, alike, probe_missing, register_missing
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import (
    along,
    arguments,
    decomposes,
    gathered,
    held,
    input_specs,
    missing,
    outcome,
    overload_of,
)
from ..targets import lookup

#: Of matrices, the last two dimensions; others are a batch.
_MATRICES = (
    *("linalg_inv_ex.default", "linalg_cholesky_ex.default", "cholesky_solve.default"),
    *("cholesky_inverse.default", "linalg_matrix_exp.default", "linalg_pinv.atol_rtol_tensor"),
    *("linalg_lu.default", "linalg_lu_factor_ex.default", "linalg_lu_solve.default"),
    *("lu_unpack.default", "linalg_eig.default", "linalg_householder_product.default"),
    *("linalg_ldl_factor_ex.default", "linalg_ldl_solve.default", "linalg_solve_triangular.default"),
)
_TRANSFORMS = ("_fft_r2c.default", "_fft_c2c.default", "_fft_c2r.default")
_SAMPLES = ("grid_sampler_2d.default", "grid_sampler_3d.default")
_SAMPLE_GRADIENTS = ("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
_WHOLE = ("addr.default", "index_add.default", "index_reduce.default", "rot90.default")
_WHOLE_UNTIL_211 = ("addmv.default", "mv.default", "vdot.default", "histc.default", "trace.default")
_CHECK = "_linalg_check_errors.default"  # returns nothing
#: What takes a matrix apart and leaves the factors to the backward, with the names of the arguments.
_FACTORED = {
    "_linalg_det.default": ("A",),
    "_linalg_slogdet.default": ("A",),
    "_linalg_solve_ex.default": ("A", "B", "left", "check_errors"),
}


def _groups() -> Groups:
    if held(SINGLE_DIM, "linalg_inv_ex.default") is not None:  # 2.12 and later
        return ()
    return (
        *((_matrices, _MATRICES), (_transforms, _TRANSFORMS)),
        *((_samples, _SAMPLES), (_sample_gradients, _SAMPLE_GRADIENTS)),
        (_whole, _WHOLE if decomposes() else _WHOLE + _WHOLE_UNTIL_211),
    )


def probe() -> Probe:
    """Look whether what factors matrices is handled, and for the other operators' strategies.

    Whether a gathered matrix is in the order that its DTensor claims, nothing in torch's tables
    shows; the handlers are right where it is.
    """
    handlers = lookup(HANDLERS, None)
    if not isinstance(handlers, dict):
        return drifted("DTensor keeps its handlers elsewhere")
    found = [handlers.get(overload_of(name)) for name in _FACTORED]
    if all(is_ours(one, factored) for one in found):
        return absent("matrices are brought into their order before they are factored", cured=True)
    if any(found):
        return drifted("DTensor handles determinants by itself")
    changed = with_other_arguments(_FACTORED)
    if changed is not None:
        return drifted(f"{changed} has other arguments")
    if not _groups():
        return present("a determinant takes a gathered matrix in whatever order it is in memory")
    return probe_missing(name for _, names in _groups() for name in names)


def edits() -> Sequence[Edit]:
    """Handle what factors matrices, and the operator that only raises; register strategies."""

    def handlers() -> Mapping[Any, Any]:
        found = {overload_of(name): handler(factored, 1) for name in _FACTORED}
        return {**found, **{overload: handler(_check, 1) for overload in missing([_CHECK])}}

    groups = _groups()
    return [AddEntries(HANDLERS, handlers), *(register_missing(groups) if groups else ())]


def _check(operator: Any, named: Mapping[str, Any]) -> None:
    """Let every rank look at all matrices, so that all raise."""
    info = named["info"]
    operator(**{**named, "info": moved(info, [None] * info.device_mesh.ndim)})


def _keeping(schema: Any, independent: Callable[[int, int], bool]) -> Any:
    kept = alike(schema, independent)
    return outcome(schema, [kept] * len(input_specs(schema)), [kept] * len(schema.op._schema.returns))


def _matrices(*given: Any) -> Any:
    ranks = {len(spec.shape) for _, spec in input_specs(given[-1])}
    return _keeping(given[-1], lambda dim, ndim: len(ranks) == 1 and dim < ndim - 2)


def _transforms(*given: Any) -> Any:
    named = arguments(given[-1])
    return _keeping(given[-1], lambda dim, ndim: dim not in along(named, ndim))


def _samples(*given: Any) -> Any:
    return _keeping(given[-1], lambda dim, ndim: dim == 0)


def _sample_gradients(*given: Any) -> Any:
    """Place gradients like the images; the one of the grid is made whether it is asked for or not."""
    schema = given[-1]
    wanted, _ = arguments(schema)["output_mask"]
    kept = alike(schema, lambda dim, ndim: dim == 0)
    return outcome(schema, [kept] * len(input_specs(schema)), [kept if wanted else None, kept])


def _whole(*given: Any) -> Any:
    return gathered(given[-1])


# -- reproducers ---------------------------------------------------------------------


def _matrix(x: Any, place: Any) -> Any:
    """A matrix that is near the unit matrix, times 3; or a batch of such."""
    import torch

    return x * 0.2 + place(torch.eye(x.shape[-1]).expand(x.shape).contiguous() * 3)


def solved() -> None:
    """Inverses, solutions of systems, and factors, with their gradients."""
    import torch

    linalg = torch.linalg

    def numbers(x: Any, place: Any) -> Any:
        matrix = _matrix(x, place)
        square = matrix @ matrix.transpose(-1, -2)
        factor = linalg.cholesky(square)
        right = place(torch.ones(*x.shape[:-1], 2))
        return [
            linalg.solve_triangular(factor.detach(), right, upper=False),
            *(factor, torch.cholesky_inverse(factor.detach())),
            *(linalg.matrix_exp(x.detach() * 0.1), linalg.pinv(matrix.detach())),
            *(linalg.lu_factor(matrix.detach())[0], linalg.lu(matrix.detach())[2]),
            *(linalg.matrix_power(matrix, -2), linalg.inv(matrix)),
        ]

    for shape in ((4, 4), (2, 3, 3)):
        reproduce.assert_same_sharded(numbers, shape=shape, rtol=1e-3, atol=1e-4)


def determinants() -> None:
    """Determinants and solutions, of one matrix and of batches, transposed and not."""
    import torch

    linalg = torch.linalg

    def numbers(x: Any, place: Any) -> Any:
        matrix, right = _matrix(x, place), place(torch.ones(*x.shape[:-1], 2))
        return [
            *(linalg.det(matrix), linalg.det(matrix.mT), linalg.slogdet(matrix)[1]),
            linalg.slogdet(matrix.mT * 2)[1],
            *(linalg.solve(matrix, right), linalg.solve(matrix.mT, right)),
        ]

    for shape in ((4, 4), (5, 5), (2, 3, 3), (3, 2, 2)):
        reproduce.assert_same_sharded(numbers, shape=shape, rtol=1e-3, atol=1e-4)


def singular() -> None:
    """A singular matrix raises what it raises elsewhere."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    zeros: Any = distribute_tensor(torch.zeros(4, 4), reproduce.cpu_mesh(), [Shard(0)])
    try:
        torch.linalg.inv(zeros)
    except RuntimeError as error:
        if "singular" not in str(error):
            raise
        return
    raise AssertionError("a singular matrix was inverted")


def transformed() -> None:
    """Fourier transforms, real and complex, along one dimension and along two."""
    import torch

    fft = torch.fft

    def transforms(x: Any, _: Any) -> Any:
        return [
            *(fft.rfft(x.detach()).abs(), fft.irfft(fft.rfft(x.detach(), dim=0), n=4, dim=0)),
            *(fft.fft2(x.detach()).abs(), fft.irfftn(fft.rfftn(x.detach()), s=(4, 6))),
        ]

    reproduce.assert_same_sharded(transforms, rtol=1e-4, atol=1e-5)


def sampled() -> None:
    """``grid_sample`` of images and of volumes, with the gradients of both inputs."""
    import torch

    F = reproduce.functional()

    def of_images(x: Any, place: Any) -> Any:
        grid = place(torch.linspace(-0.9, 0.9, 36).view(2, 3, 3, 2))
        return F.grid_sample(x, grid + x[:, :1, :3, :1] * 0.01, align_corners=False)

    def of_volumes(x: Any, place: Any) -> Any:
        grid = place(torch.linspace(-0.9, 0.9, 48).view(2, 2, 2, 2, 3))
        return F.grid_sample(x, grid, align_corners=False)

    reproduce.assert_same_sharded(of_images, shape=(2, 2, 4, 4), rtol=1e-4, atol=1e-5)
    reproduce.assert_same_sharded(of_volumes, shape=(2, 2, 2, 3, 3), rtol=1e-4, atol=1e-5)


def products() -> None:
    """Products of matrices and vectors, and what is added by an index."""
    import torch

    def numbers(x: Any, place: Any) -> Any:
        ones, index, y = torch.ones(6), torch.tensor([1, 0]), x.detach()
        return [
            *(torch.mv(x, place(ones)), torch.addmv(place(torch.ones(4)), x, place(ones))),
            *(
                torch.addr(x, place(torch.ones(4)), place(ones)),
                torch.vdot(place(ones), place(ones * 2)),
            ),
            *(y.rot90(), y.histc(4, -2.0, 2.0), y[:, :4].trace()),
            y.index_add(0, place(index), place(torch.ones(2, 6))),
            y.index_reduce(0, place(index), place(torch.ones(2, 6)), "amax"),
        ]

    reproduce.assert_same_sharded(numbers, rtol=1e-4, atol=1e-5)


_EXPECT = r"Operator aten\.\w+\.\w+ does not have a sharding strategy registered"

_UNTIL_212 = Affected(since="2.5.0", fixed_in=("2.12.0",))

SHIM = Shim(
    key="dtensor_linalg_ops",
    summary="the gradient of det of a sharded DTensor is wrong; inv, FFTs and others find no strategy",
    symptom=(
        "No error from 2.12 on: the gradient of torch.linalg.det and slogdet of a DTensor sharded along "
        "rows or columns is that of the transposed matrix, where the matrix was transposed, or on 2.12 "
        "where its shards are uneven. Before: NotImplementedError: Operator aten.linalg_inv_ex.default "
        "does not have a sharding strategy registered; so for det, solve, solve_triangular, cholesky, "
        "matrix_exp, pinv, lu, eig, torch.fft, grid_sample, mv, addmv, addr, vdot, histc, trace, rot90, "
        "index_add and index_reduce"
    ),
    cause=(
        "The kernel of det factors the transpose of a matrix that is contiguous, and the backward asks "
        "the DTensor whether it was, which gathered parts need not be. For the others DTensor registers "
        "nothing before 2.12."
    ),
    cure=(
        "A gathered matrix is brought into the order in memory that its DTensor claims. The others get "
        "a strategy: batches of matrices, dimensions not transformed and samples of grid_sample "
        "stay sharded, the rest is gathered; every rank looks whether a matrix was singular."
    ),
    # No issue of it was found.
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_math_ops.py",
    ),
    affected=Affected(since="2.5.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(
            determinants, rf"AssertionError: S\(\d\): the gradient differs|{_EXPECT}"
        ),
        *(
            reproduce.on_two_ranks(run, _EXPECT, affected=_UNTIL_212)
            for run in (solved, singular, sampled, products)
        ),
        reproduce.on_two_ranks(
            transformed, _EXPECT, since="2.9.0", needs="complex sums on gloo", affected=_UNTIL_212
        ),
    ),
    removable_when="torch keeps the order of gathered matrices, and the oldest you support is 2.12",
    notes="What is gathered costs memory and time on every rank.",
)
