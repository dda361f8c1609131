"""What the shims make of dimensions and sizes, without any ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from torchcompat.builds import TorchBuild, detect
from torchcompat.dtensor import SINGLE_DIM
from torchcompat.errors import TargetDriftError
from torchcompat.shims import (
    all_gather_negative_dim,
    dtensor_empty_dims,
    dtensor_gather_sizes,
    dtensor_logsumexp_keepdim,
    dtensor_negative_dim,
)
from torchcompat.strategies import override_rule, reword

BUILD = detect() or TorchBuild.parse("Unknown")


@dataclass(frozen=True)
class Schema:
    """Stands for torch's schema of a call."""

    op: str
    args_schema: tuple[Any, ...]
    kwargs_schema: dict[str, Any] = field(default_factory=dict)


def tensor(ndim: int) -> Any:
    return SimpleNamespace(strategies=[], ndim=ndim)


def sized(*shape: int) -> Any:
    return SimpleNamespace(shape=shape)


class TestNegativeDim:
    @pytest.mark.parametrize(("ndim", "dim", "wanted"), [(2, -1, 1), (3, -3, 0), (2, 1, 1), (0, -1, 0)])
    def test_a_scan_counts_among_the_dimensions_of_its_input(self, ndim, dim, wanted):
        schema = Schema("aten.cumsum.default", (tensor(ndim), dim))
        assert dtensor_negative_dim._from_begin(schema).args_schema[1] == wanted

    def test_a_stack_counts_the_dimension_that_it_adds(self):
        listed = SimpleNamespace(children=[tensor(2), tensor(2)])
        for dim, wanted in ((-1, 2), (-2, 1), (-3, 0), (1, 1)):
            schema = Schema("aten.stack.default", (listed, dim))
            assert dtensor_negative_dim._from_begin(schema).args_schema == (listed, wanted)

    def test_a_stack_without_a_dimension_is_left_alone(self):
        schema = Schema("aten.stack.default", (SimpleNamespace(children=[tensor(2)]),))
        assert dtensor_negative_dim._from_begin(schema) is schema

    def test_the_backward_of_select_counts_among_the_sizes_of_its_output(self):
        schema = Schema("aten.select_backward.default", (tensor(1), [5, 7], -1, 3))
        assert dtensor_negative_dim._from_begin(schema).args_schema[1:] == ([5, 7], 1, 3)


class TestEmptyDims:
    @pytest.mark.parametrize(
        ("named", "ndim", "wanted"), [([], 3, [0, 1, 2]), ([1], 3, [1]), (None, 3, None), ([], 0, None)]
    )
    def test_none_in_the_list_means_all(self, named, ndim, wanted):
        def original(dims: Any, ndim: int) -> Any:
            return None if dims is None or not ndim else list(dims)

        assert dtensor_empty_dims._reading_empty(original)(named, ndim) == wanted


class TestKeepdim:
    def test_it_is_read_by_place_and_by_name(self):
        keeps = dtensor_logsumexp_keepdim._keeps
        assert keeps((None, [0], True), {})
        assert keeps((None, [0]), {"keepdim": True})
        assert not keeps((None, [0], False), {})
        assert not keeps((None, [0]), {})


class TestGather:
    def test_only_other_dimensions_can_differ(self):
        differing = dtensor_gather_sizes._differing
        assert differing(sized(4, 6, 8), 1, sized(4, 2, 7)) == {2}
        assert differing(sized(4, 6, 8), -1, sized(3, 6, 1)) == {0}
        assert differing(sized(4, 6), 0, sized(9, 6)) == set()
        assert differing(sized(4, 6), 0, sized(9)) == set()

    def test_what_is_sharded_alike_must_be_of_one_size(self):
        shard = {dim: SimpleNamespace(dim=dim) for dim in range(3)}
        pending, replicated = SimpleNamespace(offset_dim=0), object()
        rows = [
            [pending, shard[0], pending],
            [shard[0], replicated, shard[0]],
            [shard[1]] * 3,
            [shard[2]] * 3,
        ]
        rule = dtensor_gather_sizes._only_of_one_size(lambda op, args, named: rows)
        assert rule(None, (sized(4, 6, 8), 0, sized(1, 5, 8)), {}) == [rows[0], rows[1], rows[3]]
        assert rule(None, (sized(4, 6, 8), 0, sized(1, 6, 8)), {}) == rows


class TestAllGather:
    def test_the_dimension_is_counted_from_the_begin(self):
        seen = []
        gather = all_gather_negative_dim._counting(lambda *given: seen.append(given[1:]))
        x = SimpleNamespace(dim=lambda: 3)
        for dim in (-1, -3, 2):
            gather(x, dim, "group", "tag")
        assert seen == [(2, "group", "tag"), (0, "group", "tag"), (2, "group", "tag")]


@pytest.mark.torch
@pytest.mark.skipif(
    not BUILD.known or BUILD.line < (2, 5, 0), reason="no public torch.distributed.tensor"
)
class TestDrift:
    @pytest.mark.parametrize("edit", [reword, override_rule])
    def test_an_operator_that_torch_does_not_have_is_drift(self, edit):
        import torch.distributed.tensor

        assert torch.distributed.tensor.DTensor
        with pytest.raises(TargetDriftError):
            edit({"no.operator": lambda schema: schema}).prepare()

    def test_rules_are_where_they_are_looked_for(self):
        """A rename would make every rule look like none."""
        import torch.distributed.tensor

        from torchcompat.targets import lookup

        assert torch.distributed.tensor.DTensor
        assert (lookup(SINGLE_DIM, None) is not None) is (BUILD.line >= (2, 11, 0))
