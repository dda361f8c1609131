"""``torch.utils.data.Sampler`` no longer takes ``data_source``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .. import moved
from ..edits import Edit, ReplaceAttr, is_replaced
from ..gate import Affected
from ..shim import Probe, Reproducer, Shim, absent, drifted, present
from ..targets import lookup

_SAMPLER = "torch.utils.data.sampler:Sampler"
_INIT = "torch.utils.data.sampler:Sampler.__init__"


def probe() -> Probe:
    """Look whether the class has a constructor of its own."""
    if is_replaced(_INIT):
        return absent("Sampler's constructor takes data_source, by this shim", cured=True)
    if not isinstance(lookup(_SAMPLER, None), type):
        return drifted("there is no class Sampler where it was")
    if lookup(_INIT) is not object.__init__:
        return absent("Sampler has a constructor of its own", cured=True)
    return present("Sampler has no constructor, so object's refuses data_source")


def edits() -> Sequence[Edit]:
    """Give Sampler a constructor that drops one argument where nobody else takes it."""
    sampler: Any = lookup(_SAMPLER)

    def next_in_line(cls: type) -> Any:
        after = cls.__mro__[cls.__mro__.index(sampler) + 1 :]
        return next(vars(base)["__init__"] for base in after if "__init__" in vars(base))

    def make(original: Any) -> Any:
        @functools.wraps(original, updated=())
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            if next_in_line(type(self)) is not object.__init__:
                # A mixin behind Sampler gets what it always got.
                super(sampler, self).__init__(*args, **kwargs)
            elif (len(args) == 1 and not kwargs) or (not args and kwargs.keys() == {"data_source"}):
                (given,) = (*args, *kwargs.values())
                if given is not None:
                    moved.warn_once(
                        "sampler_data_source",
                        "Sampler ignores data_source; call super().__init__() without it",
                    )
            else:
                original(self, *args, **kwargs)

        __init__.__module__, __init__.__qualname__ = sampler.__module__, "Sampler.__init__"
        return __init__

    return [ReplaceAttr(_INIT, make)]


def sampler_of_a_dataset() -> None:
    """A sampler that hands its dataset to Sampler, as the documentation once showed."""
    from torch.utils.data import DataLoader, Sampler

    class Backwards(Sampler):  # type: ignore[type-arg, unused-ignore]
        def __init__(self, data_source: Any) -> None:
            super().__init__(data_source)  # type: ignore[call-arg, unused-ignore]
            self.data = data_source

        def __iter__(self) -> Any:
            return iter(reversed(range(len(self.data))))

        def __len__(self) -> int:
            return len(self.data)

    class Mixin:
        def __init__(self, name: str = "") -> None:
            self.name = name

    class Mixed(Sampler, Mixin):  # type: ignore[type-arg, unused-ignore]
        pass

    data = [10, 20, 30]
    loader: Any = DataLoader(data, sampler=Backwards(data), batch_size=None)  # type: ignore[arg-type, unused-ignore]
    got = [int(x) for x in loader]
    if got != [30, 20, 10]:
        raise AssertionError(f"the sampler gave {got}")
    Sampler(None)  # type: ignore[call-arg, unused-ignore]
    Sampler(data_source=None)  # type: ignore[call-arg, unused-ignore]
    Mixed()


SHIM = Shim(
    key="sampler_data_source",
    summary="torch.utils.data.Sampler takes data_source again, and ignores it",
    symptom="TypeError: object.__init__() takes exactly one argument (the instance to initialize)",
    cause="2.10 took the constructor, whose only argument had been unused since 2.1, out of Sampler.",
    cure=(
        "Sampler gets a constructor that accepts data_source and ignores it, with one warning. Where a "
        "mixin follows Sampler in a class, the mixin's constructor gets the arguments as without the "
        "shim."
    ),
    upstream=(
        "https://github.com/pytorch/pytorch/pull/163134",
        "https://github.com/pytorch/pytorch/issues/123172",
    ),
    affected=Affected(since="2.10.0"),
    modules=("torch.utils.data.sampler",),
    probe=probe,
    edits=edits,
    reproducers=(
        Reproducer(
            name="sampler_of_a_dataset",
            run=sampler_of_a_dataset,
            expect=r"TypeError: (object\.__init__\(\) takes exactly one argument|Sampler\(\) takes no)",
        ),
    ),
    removable_when="none of your dependencies passes an argument to Sampler's constructor",
)
