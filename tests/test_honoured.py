"""What is patched is what runs: compiled, exported, vmapped, differentiated, pickled and copied.

On functions of torch's own and in one process; the reproducers of slice_scatter_grad,
cumsum_fill_dtype, compiler_is_exporting, ldexp_overflow and layer_norm_double_backward show
the same for real faults, under torch.compile, with numbers.
"""

from __future__ import annotations

import pytest

SETUP = """
import copy, functools, io, pickle, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
import torch
import torch.nn.functional as F
import torchcompat
from torchcompat import Affected, ReplaceAttr, absent, lookup, present
from fakes import make_shim

def shim(key, target, make, **more):
    def probe():
        cured = getattr(lookup(target), "tripled", False)
        return absent("tripled", cured=True) if cured else present("plain")
    torchcompat.register(make_shim(key, target, probe=probe, affected=Affected(since=None),
                                   edits=lambda: [ReplaceAttr(target, make)], **more))

def triple(original):
    @functools.wraps(original, updated=())
    def softsign(input):
        # Not by calling the original: dynamo puts that into its graph by name, and the name is ours.
        return 3 * input / (1 + input.abs())
    softsign.tripled = True
    return softsign

def triple_forward(original):
    @functools.wraps(original, updated=())
    def forward(self, input):
        return 3 * original(self, input)
    forward.tripled = True
    return forward

shim("a_function", "torch.nn.functional:softsign", triple)
shim("a_method", "torch.nn.modules.linear:Linear.forward", triple_forward, dynamo_reset=True)
torch.manual_seed(0)
x = torch.randn(4)
plain = x / (1 + x.abs())
net = torch.nn.Linear(4, 4)
by_hand = x @ net.weight.T + net.bias
close = torch.testing.assert_close
"""
BODY = """
def uses(x):
    return F.softsign(x) + 1

# torch.compile, fullgraph: a function that is replaced after it was compiled, and put back.
compiled = torch.compile(uses, backend="eager", fullgraph=True)
close(compiled(x), plain + 1)
torchcompat.apply("a_function")
close(compiled(x), 3 * plain + 1)
close(torch.compile(lambda x: F.softsign(x) * 2, backend="aot_eager", fullgraph=True)(x), 6 * plain)

# functorch, on top of the patch.
close(torch.func.vmap(F.softsign)(x.repeat(3, 1)), (3 * plain).repeat(3, 1))
close(torch.func.grad(lambda x: F.softsign(x).sum())(x), 3 / (1 + x.abs()) ** 2)
close(torch.func.jacrev(F.softsign)(x), torch.diag(3 / (1 + x.abs()) ** 2))

# Pickled by reference, both ways.
assert pickle.loads(pickle.dumps(F.softsign)) is F.softsign
held = pickle.dumps(F.softsign)
assert copy.deepcopy(F.softsign) is F.softsign

# Exported: the graph has the patch in it, and keeps it.
class Uses(torch.nn.Module):
    def forward(self, x):
        return F.softsign(x)
exported = torch.export.export(Uses(), (x,)).module()
close(exported(x), 3 * plain)
torchcompat.revert("a_function")
close(exported(x), 3 * plain)
close(compiled(x), plain + 1)
assert pickle.loads(held) is F.softsign and not hasattr(F.softsign, "tripled")

# A method: dynamo does not see it change, so the engine resets what was compiled.
whole = torch.compile(net, backend="eager", fullgraph=True)
close(whole(x), by_hand)
outcome = torchcompat.apply("a_method")
assert "torch._dynamo was reset" in outcome.reason, outcome.reason
close(whole(x), 3 * by_hand)
copied = copy.deepcopy(net)
close(copied(x), 3 * by_hand)
close(pickle.loads(pickle.dumps(net))(x), 3 * by_hand)
with_it = torchcompat.fingerprint()
torchcompat.revert("a_method")
close(whole(x), by_hand)
close(copied(x), by_hand)
assert torchcompat.fingerprint() != with_it, "it keeps the caches of the two apart"
print("honoured")
"""


@pytest.mark.torch
@pytest.mark.slow
def test_what_is_patched_is_what_runs(python):
    from conftest import ROOT

    out = python(SETUP.format(tests=str(ROOT / "tests")) + BODY)
    assert out.stdout.strip() == "honoured"
