"""A tensor that is a copy of others' numbers, and brings back what is written to it or to its views.

Imports torch only when called.
"""

from __future__ import annotations

import copy as copying
import functools
from collections.abc import Callable
from typing import Any

__all__ = ["write_through"]


def write_through(copy: Any, put_back: Callable[[], None]) -> Any:
    """Return a tensor with the storage of ``copy`` that calls a function after every write.

    Its views do the same; what any other operator makes of it is a plain tensor. Operators
    run on plain tensors below autograd, so that this costs one Python call each.

    Args:
        copy: a plain tensor, without gradient.
        put_back: reads ``copy`` and writes it to where its numbers came from.
    """
    return _as_view(copy, put_back)


def _as_view(tensor: Any, put_back: Callable[[], None]) -> Any:
    import torch

    if type(tensor) is not torch.Tensor:
        return tensor
    view: Any = torch.Tensor._make_subclass(_view_class(), tensor)
    view._put_back = put_back
    return view


@functools.cache
def _view_class() -> type:
    import torch
    from torch.utils._pytree import tree_iter, tree_map_only

    class CopyThatWritesBack(torch.Tensor):
        """See write_through()."""

        _put_back: Callable[[], None]
        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment, unused-ignore]

        @classmethod
        def __torch_dispatch__(  # type: ignore[override, unused-ignore]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            plain_args, plain_kwargs = tree_map_only(cls, cls.plain, (args, kwargs))
            made = func(*plain_args, **plain_kwargs)
            aliased: list[CopyThatWritesBack] = []
            for at, declared in enumerate(func._schema.arguments):
                if declared.alias_info is None:
                    continue
                argument = args[at] if at < len(args) else kwargs.get(declared.name)
                ours = [tensor for tensor in tree_iter(argument) if isinstance(tensor, cls)]
                if not declared.alias_info.is_write:
                    aliased += ours
                    continue
                for tensor in ours:
                    tensor._put_back()
                if not isinstance(argument, (list, tuple)) and isinstance(made, torch.Tensor):
                    made = argument  # what is written is returned
            if not aliased:
                return made
            return tree_map_only(torch.Tensor, lambda one: _as_view(one, aliased[0]._put_back), made)

        def plain(self) -> Any:
            with torch._C._DisableTorchDispatch():
                return self.detach()

        def differentiable(self) -> Any:
            with torch._C._DisableTorchDispatch():
                return self.view_as(self)

        # What torch does otherwise, or not at all, for a subclass:

        def tolist(self) -> Any:
            return self.plain().tolist()

        def numpy(self, **named: Any) -> Any:
            return self.differentiable().numpy(**named)

        def __repr__(self, **named: Any) -> str:  # type: ignore[override, unused-ignore]
            return repr(self.differentiable())

        def __deepcopy__(self, memo: Any) -> Any:
            made = memo[id(self)] = copying.deepcopy(self.differentiable(), memo)
            return made

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.differentiable().__reduce_ex__(protocol)

    return CopyThatWritesBack
