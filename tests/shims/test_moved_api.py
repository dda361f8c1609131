"""What is special to the shims for moved and removed API: warnings, logs, safety, compilation.

Each case runs in a fork of one process that has imported torch.
"""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import traceback
import warnings

import pytest

SKIP = "this torch does not need the shim"


def applied(key):
    """Apply a shim; False where this torch does without it."""
    import torchcompat

    return str(torchcompat.apply(key).state) == "applied"


def refused(error, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as found:
        return str(found)
    raise AssertionError("nothing was raised")


def records():
    """What the logger torchcompat says from now on."""
    said = []

    class Handler(logging.Handler):
        def emit(self, record):
            said.append(record)

    logging.getLogger("torchcompat").addHandler(Handler(logging.WARNING))
    return said


def case_verbose_warns_once_and_goes_with_the_shim():
    import torch

    import torchcompat

    class Still(torch.optim.Optimizer):
        def __init__(self):
            self.defaults, self.state, self.param_groups = {}, {}, [{"lr": 0.1, "params": []}]

        def step(self, closure=None):
            pass

    if not applied("lr_scheduler_verbose"):
        return SKIP
    step, plateau = torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler.ReduceLROnPlateau
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert step(Still(), 1, verbose=True).verbose is True
        step(Still(), 1, 0.1, -1, False)
        plateau(Still(), verbose=True)
        step(Still(), 1)
    (only,) = found
    assert "get_last_lr" in str(only.message)
    assert only.filename == __file__, only.filename
    assert "positional arguments" in refused(TypeError, step, Still(), 1, 0.1, -1, True, 7)
    assert "verbos" in refused(TypeError, step, Still(), 1, verbos=True)
    torchcompat.revert("lr_scheduler_verbose")
    assert "verbose" in refused(TypeError, step, Still(), 1, verbose=True)


def case_sampler_warns_once_and_leaves_mixins_alone():
    from torch.utils.data import Sampler

    import torchcompat

    class Mixin:
        def __init__(self, name):
            self.name = name

    class Mixed(Sampler, Mixin):
        pass

    if not applied("sampler_data_source"):
        return SKIP
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Sampler(None)
        assert not found
        Sampler([1])
        Sampler(data_source=[1])
        assert Mixed("a").name == "a"
    assert len(found) == 1
    for args, kwargs in (((1, 2), {}), ((), {"source": 1}), ((1,), {"data_source": 1})):
        refused(TypeError, Sampler, *args, **kwargs)
    torchcompat.revert("sampler_data_source")
    refused(TypeError, Sampler, None)
    assert "__init__" not in vars(Sampler)


def case_profiler_warns_once():
    import torch

    if not applied("profiler_use_cuda"):
        return SKIP
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.autograd.profiler.profile(use_cuda=False)
    assert ["use_device='cuda'" in str(one.message) for one in found] == [True]


def checkpoint(value):
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def load_pickle(data):
    """Load pickle bytes as torch.load would load those of a checkpoint."""
    from torch import _weights_only_unpickler

    return _weights_only_unpickler.load(io.BytesIO(data), encoding="utf-8")


class Evil:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def case_what_is_allowed_executes_nothing():
    import pickle

    import numpy as np
    import torch

    from torchcompat.shims import load_weights_only as shim

    if not applied("load_weights_only"):
        return SKIP
    good = [shim._through(np.float64(1)), *(t for t in shim.HARMLESS if t is not str)]
    assert good[0] == 1
    events = []
    watched = ("exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "ctypes.")
    values = [{"a": 1}, slice(1), range(2), frozenset({1}), np.float32(2), np.str_("x")]
    files = [checkpoint(value) for value in (*values, torch.__version__)]
    sys.addaudithook(lambda event, args: events.append(event) if event.startswith(watched) else None)
    for file in files:
        torch.load(file)
    held = [event for event in events if event != "import"]
    assert not held, held
    for evil in (
        Evil(os.system, "true"),
        Evil(eval, "1"),
        Evil(getattr, "a", "upper"),
        Evil(print, "no"),
        Evil(np.dtype, "O"),
        Evil(np.frombuffer, b"12"),
        {"inner": [Evil(exec, "1")]},
    ):
        message = refused(pickle.UnpicklingError, torch.load, checkpoint(evil))
        assert "Weights only load failed" in message, message
    # A dtype whose state claims fields of objects, and flags that deny it.
    forged = pickle.dumps(np.float64(1), protocol=2)
    assert load_pickle(forged) == 1
    refused(pickle.UnpicklingError, shim.PlainDtype, "O8")
    refused(pickle.UnpicklingError, shim.PlainDtype, "V8")
    state = (3, "<", None, ("f",), {"f": (np.dtype("O"), 0)}, 8, 1, 0)
    refused(pickle.UnpicklingError, shim.PlainDtype("f8").__setstate__, state)
    refused(pickle.UnpicklingError, shim.scalar, np.dtype("O"), b"12345678")
    refused(pickle.UnpicklingError, shim.scalar, shim.PlainDtype("f8"), b"123")
    # A dtype alone is not loaded, and says so where it is used.
    (alone,) = torch.load(checkpoint([np.dtype("f4")]))
    assert "add_safe_globals" in refused(AttributeError, lambda: alone.itemsize)
    # Kinds of scalars, the byte order too.
    for scalar in (np.int8(-1), np.uint64(2**63), np.complex64(1j), np.bytes_(b"ab"), np.str_("ä")):
        got = torch.load(checkpoint(scalar))
        assert (got, type(got)) == (scalar, type(scalar))
    swapped = shim.PlainDtype("f8")
    swapped.__setstate__((3, ">", None, None, None, -1, -1, 0))
    assert shim.scalar(swapped, np.array(1.5, ">f8").tobytes()) == 1.5


def case_what_the_program_allows_itself_wins():
    import numpy as np
    import torch

    if not applied("load_weights_only"):
        return SKIP
    rebuild = np.zeros(2).__reduce__()[0]
    theirs = [rebuild, np.ndarray, np.dtype, type(np.dtype(np.float64))]
    with torch.serialization.safe_globals(theirs):
        got = torch.load(checkpoint({"array": np.arange(3.0), "scalar": np.float64(2)}))
    assert (got["array"].tolist(), got["scalar"]) == ([0, 1, 2], 2)
    assert np.ndarray not in torch.serialization.get_safe_globals()
    import torchcompat

    assert str(torchcompat.status()["load_weights_only"].state) == "applied"


def case_weights_only_off_is_opt_in_and_logged_each_time():
    import pickle

    import torch

    import torchcompat

    assert str(torchcompat.apply_all()["load_weights_only_off"].state) == "opt_in"
    torchcompat.revert_all()
    if not applied("load_weights_only_off"):
        return SKIP
    said = records()
    for _ in range(2):
        assert torch.load(checkpoint(Evil(dict))) == {}
    assert ["runs whatever code" in one.getMessage() for one in said] == [True, True]
    refused(pickle.UnpicklingError, torch.load, checkpoint(Evil(dir)), weights_only=True)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    refused(pickle.UnpicklingError, torch.load, checkpoint(Evil(dir)))
    assert len(said) == 2
    torchcompat.revert("load_weights_only_off")
    assert torch.load is torch.serialization.load


def case_hub_is_opt_in_and_logged_each_time():
    import torch

    import torchcompat

    assert str(torchcompat.apply_all()["hub_trust_prompt"].state) == "opt_in"
    torchcompat.revert_all()
    if not applied("hub_trust_prompt"):
        return SKIP
    asked = []
    torch.hub._check_repo_is_trusted = lambda *args, **kwargs: asked.append((args, kwargs))
    torch.hub._get_cache_or_reload = lambda *args, **kwargs: asked.append(args) or "/nowhere"
    said = records()
    for _ in range(2):
        refused(Exception, torch.hub.list, "nobody/nothing:main")
    assert ["nobody/nothing" in one.getMessage() for one in said] == [True, True]
    refused(Exception, torch.hub.list, "nobody/nothing:main", trust_repo="check")
    refused(Exception, torch.hub.list, "nobody/nothing:main", False, False, "check")
    assert len(said) == 2
    assert [None in args for args in asked] == [True, True, False, False], asked


def case_pt2e_says_what_to_install():
    from importlib.util import find_spec

    import torch.ao.quantization

    if find_spec("torchao") or not applied("quantize_pt2e"):
        return SKIP
    message = refused(ImportError, exec, "from torch.ao.quantization.quantize_pt2e import prepare_pt2e")
    assert "pip install torchao" in message
    assert not hasattr(torch.ao.quantization.quantizer, "__path__")


def case_compiled_code_sees_the_cures():
    """Functions under torch.compile, without graph breaks, before and after the shims come."""
    import torch
    import torch._dynamo.config
    import torch._inductor.config as inductor

    import torchcompat

    def compiled(function, *args):
        torch._dynamo.reset()
        return torch.compile(function, backend="eager", fullgraph=True)(*args)

    def reads(x):
        return x + 1 if torch.backends.cuda.matmul.allow_tf32 else x + 2

    x = torch.zeros(2)
    assert compiled(reads, x)[0] == 2
    norm = torch.nn.RMSNorm(4)
    half = torch.ones(2, 4, dtype=torch.bfloat16)
    compiled(norm, half)
    before = inductor.get_hash()
    opted = ("rms_norm_dtype", "fp8_saturate", "load_weights_only_off")
    for key in (*torchcompat.status(), *opted):
        if key in opted or not torchcompat.status()[key].state == "opt_in":
            torchcompat.apply(key)
    assert inductor.get_hash() == before
    assert compiled(norm, half).dtype == torch.bfloat16
    assert compiled(torch.isin, x, torch.zeros(1)).all()
    if torch.compiler.is_exporting.__module__.startswith("torchcompat"):
        assert compiled(lambda x: x + torch.compiler.is_exporting(), x)[0] == 0
    compiled(lambda x: x.to(torch.float8_e4m3fn).float(), x)
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert compiled(reads, x)[0] == 1
        torch.backends.cuda.matmul.allow_tf32 = False
        assert compiled(reads, x)[0] == 2
    torchcompat.revert_all()


CASES = [name for name in dict(globals()) if name.startswith("case_")]
SLOW = {"case_compiled_code_sees_the_cures"}


def main(names):
    """Run cases, each in a fork, and print what came of them as JSON."""
    import torch  # noqa: F401

    answers = {}
    for name in names:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                answer = globals()[name]() or ""
            except BaseException:
                answer = traceback.format_exc()
            os.write(write, answer[-3000:].encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answers[name] = pipe.read()
        _, status = os.waitpid(pid, 0)
        if status:
            answers[name] += f"\nended with status {status}"
    print("ANSWERS" + json.dumps(answers))


def run(names):
    from conftest import ROOT, child_environment

    environment = child_environment(ROOT, os.path.dirname(__file__))
    environment["OMP_NUM_THREADS"] = "1"
    command = f"import test_moved_api; test_moved_api.main({names!r})"
    done = subprocess.run(
        [sys.executable, "-c", command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("ANSWERS")[2])


@pytest.fixture(scope="module")
def answers():
    return run([name for name in CASES if name not in SLOW])


def judge(answer):
    if answer == SKIP:
        pytest.skip(SKIP)
    assert not answer, answer


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in CASES if name not in SLOW])
def test_case(answers, name):
    judge(answers[name])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_slow_case(name):
    judge(run([name])[name])
