"""solve_triangular of a batch of systems takes right sides that every rank has whole for shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import reproduce
from ..dtensor import SINGLE_DIM
from ..edits import Edit
from ..gate import Affected
from ..rules import ask, leaving_out
from ..shim import Probe, Shim, absent, drifted, present
from ..strategies import held, overload_of, overridden, override_rule

_NAME = "linalg_solve_triangular.default"


def probe() -> Probe:
    """Ask the rule, a pure function, for two batches of the same size."""
    if held(SINGLE_DIM, _NAME) is None:
        return absent("solve_triangular has no rule for one mesh dimension")
    if overridden([overload_of(_NAME)], _where_one_matrix):
        return absent("a batch of matrices is sharded with its right sides, by this shim", cured=True)
    rows = ask(_NAME, (2, 2, 2), (2, 2, 2))
    if rows is None:
        return drifted("DTensor keeps its rules differently")
    if any(_of_right_sides_only(row) is not None for row in rows):
        return present("right sides are sharded along a batch that the matrices have whole")
    return absent("a batch of matrices is sharded with its right sides")


def _of_right_sides_only(row: Sequence[Any]) -> int | None:
    """Along which dimension a rule shards the right sides and not the matrices."""
    _, matrices, right = row
    return None if hasattr(matrices, "dim") else getattr(right, "dim", None)


def _of_several_matrices(op: Any, args: Any, row: Sequence[Any]) -> bool:
    """Whether a row shards right sides along a batch that the matrices have, and keep whole."""
    matrices, right = args[0].shape, args[1].shape
    dim = _of_right_sides_only(row)
    own = -1 if dim is None else dim - (len(right) - len(matrices))
    return own >= 0 and matrices[own] != 1


_where_one_matrix = leaving_out(_of_several_matrices)


def edits() -> Sequence[Edit]:
    """Leave out of torch's rule what shards the right sides of several matrices alone."""
    return [override_rule({overload_of(_NAME): _where_one_matrix})]


def batches() -> None:
    """As many matrices as right sides, one for all of them, and fewer dimensions."""
    import torch

    def solved(x: Any, place: Any) -> Any:
        matrices = torch.eye(3) * 2 + torch.ones(4, 3, 3).tril() * 0.1
        found = []
        for left in (matrices, matrices[:1], matrices[0]):
            # every rank has the matrices whole, as it does after tril()
            whole = reproduce.beside(x, left.contiguous())
            found.append(torch.linalg.solve_triangular(whole, x, upper=False))
        return [*found, torch.linalg.solve_triangular(place(matrices), x, upper=False)]

    reproduce.assert_same_sharded(solved, shape=(4, 3, 2))


SHIM = Shim(
    key="dtensor_solve_triangular",
    summary="solve_triangular of batches returns parts of the wrong size, where matrices are replicated",
    symptom=(
        "torch.linalg.solve_triangular(A, B) of batches, with A on every rank, as tril() leaves it, and "
        "B sharded along the batch, returns parts of the wrong size: RuntimeError: narrow unexpectedly "
        "changed concrete size on dim 0, once they are gathered, or an error in the backward"
    ),
    cause=(
        "The rule shards B along its batch and keeps A whole, which is right only where A has no batch: "
        "every rank solves for all matrices with its share of the right sides."
    ),
    cure="That is left to matrices without a batch, or with one of size 1; others are sharded with B.",
    # No issue of it was found.
    upstream=(
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/distributed/tensor/_ops/_math_ops.py",
    ),
    affected=Affected(since="2.12.0"),
    modules=("torch.distributed.tensor",),
    probe=probe,
    edits=edits,
    reproducers=(
        reproduce.on_two_ranks(
            batches,
            r"RuntimeError: .*(narrow unexpectedly changed|must match)",
            since="2.12.0",
            needs="a rule for solve_triangular",
        ),
    ),
    removable_when="torch looks at the batch of A",
    notes="Before 2.12 there is no rule: dtensor_linalg_ops brings a strategy.",
)
