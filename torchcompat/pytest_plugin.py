"""The pytest plugin: ``--torchcompat``, two markers and a fixture.

It comes with the installed package, so pytest imports this file in every run: nothing
else of torchcompat is loaded, and torch never, before somebody uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .report import Report

__all__ = ["torchcompat_applied"]

_OPTION = "--torchcompat"
_EVERYTHING = "all"
_QUIET = frozenset({"not_affected", "already_fixed", "opt_in", "retired"})
_MARKS = ("torch_affected", "torchcompat")
_keys = pytest.StashKey[list[str]]()
_stack = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--torchcompat[=KEYS]``."""
    parser.getgroup("torchcompat").addoption(
        _OPTION,
        metavar="KEYS",
        nargs="?",
        const=_EVERYTHING,
        default=None,
        help="apply torchcompat's shims for the whole run: all that this build needs, or those named "
        f"(comma-separated; write {_OPTION}=KEYS)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Keep ``pytest --torchcompat tests/`` from reading the path as keys."""
    if _OPTION in args:
        args[:] = [f"{_OPTION}={_EVERYTHING}" if argument == _OPTION else argument for argument in args]
        # pytest has parsed them once already, to find the conftest files of the paths.
        early_config.known_args_namespace = parser.parse_known_args(args)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and apply the shims if asked to."""
    config.addinivalue_line(
        "markers",
        "torch_affected(*keys): skip unless this build of torch has the faults that these shims cure",
    )
    config.addinivalue_line(
        "markers", "torchcompat(*keys, force=False): apply these shims for the length of the test"
    )
    wanted = config.getoption("torchcompat")
    if wanted is not None:
        config.stash[_keys] = _apply_for_run(wanted)


def _apply_for_run(wanted: str) -> list[str]:
    """Apply all shims or the named ones; return the keys whose state has changed."""
    import torchcompat

    keys = None if wanted == _EVERYTHING else [k.strip() for k in wanted.split(",") if k.strip()]
    changed: list[str] = []
    # Events and not status(), which also forecasts what nobody has asked for.
    unsubscribe = torchcompat.subscribe(lambda event: changed.append(event.outcome.key))
    try:
        torchcompat.apply_all(only=keys)
    except torchcompat.UnknownShimError as error:
        raise pytest.UsageError(f"{_OPTION}: {error}") from error
    finally:
        unsubscribe()
    return list(dict.fromkeys(changed))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Take back what ``--torchcompat`` applied: pytest may be run inside a program."""
    keys = config.stash.get(_keys, [])
    if keys:
        import torchcompat

        report = torchcompat.status()
        for key in reversed(keys):
            # What torch offers no way back from stays.
            if report[key].reversible:
                torchcompat.revert(key)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in one line what ``--torchcompat`` did."""
    if config.getoption("torchcompat") is None:
        return None
    import torchcompat

    report = torchcompat.status()
    if report.build is None:
        return "torchcompat: there is no torch here, so nothing to apply"
    states: dict[str, list[str]] = {}
    for key in config.stash.get(_keys, []):
        states.setdefault(str(report[key].state), []).append(key)
    shown = {state: keys for state, keys in states.items() if state not in _QUIET}
    said = "; ".join(f"{state} {', '.join(keys)}" for state, keys in shown.items())
    return f"torchcompat: torch {report.build}: {said or 'no shim is needed'}"


# -- markers -------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a marker without keys, or with one that names no shim, before anything runs."""
    for item in items:
        for name in _MARKS:
            for mark in item.iter_markers(name):
                try:
                    _check(mark)
                except (LookupError, TypeError) as error:
                    raise pytest.UsageError(f"{item.nodeid}: marker {name}: {error}") from error


def _check(mark: pytest.Mark) -> None:
    if not mark.args:
        raise TypeError(f"name at least one shim, like pytest.mark.{mark.name}('sac_profiler')")
    unknown = set(mark.kwargs) - ({"force"} if mark.name == "torchcompat" else set())
    if unknown:
        raise TypeError(f"it takes no {', '.join(sorted(unknown))}")
    from .default import registry

    for key in mark.args:
        registry.get(key)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip where the build has not the fault; apply what the test asks for."""
    for mark in item.iter_markers("torch_affected"):
        for key in mark.args:
            reason = _why_unaffected(key)
            if reason is not None:
                pytest.skip(f"{key}: {reason}")
    marks = list(item.iter_markers("torchcompat"))
    if marks:
        item.stash[_stack] = stack = ExitStack()
        for mark in reversed(marks):  # a class's before its methods'
            _enter(stack, mark.args, force=bool(mark.kwargs.get("force")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Take back what the test asked for, after its fixtures and whatever happened."""
    try:
        return (yield)
    finally:
        stack = item.stash.get(_stack, None)
        if stack is not None:
            del item.stash[_stack]
            stack.close()


def _enter(stack: ExitStack, keys: Sequence[str], *, force: bool) -> Report:
    import torchcompat

    return stack.enter_context(torchcompat.applied(*keys, force=force))


def _why_unaffected(key: str) -> str | None:
    """Return why this build has not the fault, or None where it has."""
    from importlib import import_module

    from .default import registry, status
    from .gate import Verdict
    from .report import State
    from .shim import Presence

    report = status()
    if report.build is None:
        return "there is no torch here"
    if report[key].state is State.APPLIED:
        return None  # the fault was here, and is cured
    shim = registry.get(key)
    gated = shim.affected.judge(report.build)
    if gated.verdict is Verdict.OUT:
        return gated.reason
    for name in ("torch", *shim.modules):
        try:
            import_module(name)
        except ImportError as error:
            return f"{name} cannot be imported here ({error})"
    if status()[key].state is State.APPLIED:
        return None  # it was waiting for its modules
    found = shim.probe()
    if found.presence is Presence.PRESENT:
        return None
    if found.presence is Presence.DRIFTED and gated.verdict is Verdict.IN:
        return None  # the version says so, and the probe cannot deny it
    return found.reason


@pytest.fixture
def torchcompat_applied() -> Iterator[Callable[..., Any]]:
    """Apply shims from inside a test: ``torchcompat_applied("sac_profiler")``.

    Returns the report; takes ``force=True``. They are taken back when the test ends.
    """
    with ExitStack() as stack:

        def apply(*keys: str, force: bool = False) -> Report:
            return _enter(stack, keys, force=force)

        yield apply
