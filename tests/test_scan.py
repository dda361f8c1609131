"""``torchcompat scan``: gates are judged by evaluating them, and patches are found by name."""

from __future__ import annotations

import ast
import json
import textwrap

import pytest
from conftest import ROOT
from fakes import make_shim
from packaging.version import Version
from test_cli import call

from torchcompat import TorchBuild, cli
from torchcompat.registry import Registry
from torchcompat.scan import scan
from torchcompat.scan.render import FORMATS
from torchcompat.scan.replaces import Replacements, edit_targets
from torchcompat.scan.table import BUILDS, RELEASES
from torchcompat.scan.versions import LooseVersion, StrictVersion, TorchVersion

HEAD = """\
import importlib.metadata, operator, re
import torch
from packaging.specifiers import SpecifierSet
from packaging.version import Version, parse
"""
ALPHA, NIGHTLY, LOCAL = "2.13.0a0+8145d630e8", "2.13.0.dev20260601+cu130", "2.13.0+cu132"
TABLE = ["2.9.1", "2.12.1+cu130", "2.13.0", LOCAL, ALPHA, NIGHTLY, "2.10.0a0+b4e4ee81d3.nv25.12"]


@pytest.fixture
def scanned(tmp_path):
    """Scan one file's source, or several by name; returns the scan."""

    def run(source, builds=BUILDS, shims=(), **others):
        files = {"code.py": source, **{f"{name}.py": text for name, text in others.items()}}
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/", 1) if "__" in name[1:-9] else tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return scan([str(tmp_path)], shims, builds)

    return run


def wrong_on(scan_):
    """What the only gate of a scan gets wrong: answer by build."""
    (gate,) = [finding for finding in scan_.found if finding.is_gate]
    return {answer.build: answer.got for answer in gate.wrong}


# -- gates ---------------------------------------------------------------------------

WRONG = [
    ('Version(torch.__version__) >= Version("2.13")', "gate-version", {ALPHA: "False", NIGHTLY: "False"}),
    ('parse(torch.__version__) < parse("2.13")', "gate-version", {ALPHA: "True", NIGHTLY: "True"}),
    ('Version("2.13") <= Version(torch.__version__)', "gate-version", {ALPHA: "False", NIGHTLY: "False"}),
    ('torch.__version__ >= "2.13"', "gate-version", {ALPHA: "False", NIGHTLY: "False"}),
    ("torch.__version__ >= (2, 13)", "gate-version", {ALPHA: "False", NIGHTLY: "False"}),
    ('torch.__version__ == "2.13.0"', "gate-version", dict.fromkeys((LOCAL, ALPHA, NIGHTLY), "False")),
    ('Version(torch.__version__) <= Version("2.13.0")', "gate-version", {LOCAL: "False"}),
    ('Version(torch.__version__) > Version("2.13.0")', "gate-version", {LOCAL: "True"}),
    ('Version(torch.__version__) >= Version("2.13.0a0")', "gate-version", {NIGHTLY: "False"}),
    ('Version("2.10") <= Version(torch.__version__) < Version("2.13")', "gate-version",
     {"2.10.0a0+b4e4ee81d3.nv25.12": "False", ALPHA: "True", NIGHTLY: "True"}),
    ('importlib.metadata.version("torch") >= "2.9"', "gate-text",
     dict.fromkeys(TABLE[1:], "False")),
    ('torch.__version__.split("+")[0] >= "2.9"', "gate-text", dict.fromkeys(TABLE[1:], "False")),
    ('parse(torch.__version__).base_version >= "2.9.0"', "gate-text", dict.fromkeys(TABLE[1:], "False")),
    ('torch.__version__[:3] >= "2.9"', "gate-text", dict.fromkeys(TABLE[1:], "False")),
    ('torch.__version__[:3] == "2.1"', "gate-text", dict.fromkeys(TABLE[1:], "True")),
    ('torch.__version__.split(".")[1] >= "9"', "gate-text", dict.fromkeys(TABLE[1:], "False")),
    ('"2.1" in torch.__version__', "gate-part", dict.fromkeys(TABLE[1:], "True")),
    ('"2.1" not in torch.__version__', "gate-part", dict.fromkeys(TABLE[1:], "False")),
    ('torch.__version__.startswith("2.1")', "gate-part", dict.fromkeys(TABLE[1:], "True")),
    ('float(".".join(torch.__version__.split(".")[:2])) >= 2.9', "gate-numbers",
     dict.fromkeys(TABLE[1:], "False")),
    ('parse(torch.__version__).release > (2, 12)', "gate-numbers", {}),
    ('parse(torch.__version__).release == (2, 13)', "gate-numbers",
     dict.fromkeys(TABLE[2:6], "False")),
    ('torch.__version__ in ("2.13.0", "2.9.1")', "gate-version", dict.fromkeys((LOCAL, ALPHA, NIGHTLY), "False")),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "rule", "expected"), WRONG, ids=[case[0] for case in WRONG])
def test_gates_that_misjudge_builds(scanned, gate, rule, expected):
    found = scanned(f"{HEAD}ANSWER = {gate}\n", TABLE)
    assert [finding.rule for finding in found.found] == [rule]
    assert wrong_on(found) == expected


@pytest.mark.parametrize(("gate", "rule", "expected"), WRONG, ids=[case[0] for case in WRONG])
def test_what_a_gate_is_said_to_answer_is_what_python_answers(scanned, gate, rule, expected):
    """The interpreter against Python itself, on a stand-in for torch."""
    for build, answer in expected.items():
        real = type("torch", (), {"__version__": TorchVersion(build)})
        names = {"torch": real, "Version": Version, "parse": Version}
        metadata = type("metadata", (), {"version": staticmethod(lambda name, b=build: b)})
        names["importlib"] = type("importlib", (), {"metadata": metadata})
        assert str(eval(gate, names)) == answer


def test_numbers_cut_out_of_text_raise(scanned):
    found = scanned(
        HEAD
        + 'PARTS = torch.__version__.split("+")[0].split(".")\nNEW = tuple(map(int, PARTS)) >= (2, 13)\n',
        TABLE,
    )
    assert wrong_on(found) == {
        build: f"raises ValueError (invalid literal for int() with base 10: '{piece}')"
        for build, piece in ((ALPHA, "0a0"), (NIGHTLY, "dev20260601"), (TABLE[-1], "0a0"))
        if build != NIGHTLY
    } | {
        NIGHTLY: "raises ValueError (invalid literal for int() with base 10: 'dev20260601')",
    }


def test_specifier_sets_are_tried_with_old_packaging_too(scanned):
    wrong = wrong_on(
        scanned(HEAD + 'NEW = Version(torch.__version__) in SpecifierSet(">=2.10")\n', TABLE)
    )
    assert wrong[TABLE[-1]].startswith("False")
    assert wrong[ALPHA].startswith("False")
    assert set(wrong) == {TABLE[-1], ALPHA, NIGHTLY}
    right = scanned(
        HEAD
        + "BASE = Version(torch.__version__).base_version\n"
        + 'NEW = SpecifierSet(">=2.10").contains(BASE, prereleases=True)\n',
        TABLE,
    )
    assert wrong_on(right) == {}


RIGHT = [
    'Version(Version(torch.__version__).base_version) >= Version("2.13")',
    "Version(torch.__version__).release >= (2, 13)",
    "Version(torch.__version__).release[:2] == (2, 13)",
    "Version(torch.__version__).major > 2 or Version(torch.__version__).minor >= 13",
    'tuple(int(p) for p in torch.__version__.split(".")[:2]) >= (2, 13)',
    'torch.__version__.startswith("2.13.")',
    '"2.13." in torch.__version__',
    'Version(torch.__version__) >= Version("2.13.dev0")',
    'torch.__version__ >= "1.13"',
]


@pytest.mark.parametrize("gate", RIGHT)
def test_gates_that_are_right(scanned, gate):
    found = scanned(f"{HEAD}ANSWER = {gate}\n")
    assert [finding for finding in found.found if finding.is_gate]
    assert found.findings == []


NOT_LINES = [
    '"dev" in torch.__version__',
    '"+cu" in torch.__version__',
    'torch.__version__.endswith("cpu")',
    'torch.__version__.split("+")[-1] == "cpu"',
    'Version(torch.__version__).local == "cpu"',
    "Version(torch.__version__).is_devrelease == True",
    "torch.version.cuda >= '12'",
    "len(torch.__version__) > 6",
    "numpy.__version__ >= '2.13'",
]


@pytest.mark.parametrize("test", NOT_LINES)
def test_what_is_no_gate_on_the_line(scanned, test):
    found = scanned(f"{HEAD}import numpy\nANSWER = {test}\n")
    assert found.found == []


def test_a_dated_nightly_is_not_second_guessed(scanned):
    found = scanned(
        HEAD + 'NEW = Version(torch.__version__) >= Version("2.13.0.dev20260701")\n',
        [NIGHTLY, ALPHA, "2.13.0", "2.12.1"],
    )
    assert wrong_on(found) == {}


def test_names_are_followed(scanned):
    found = scanned(
        """
        import torch as t
        import torch.version
        from torch import __version__ as tv
        try:
            from packaging import version as V
        except ImportError:
            V = None
        RAW = tv
        MAJOR, MINOR = RAW.split(".")[:2]
        BASE = RAW.split("+")[0]
        BASE = BASE.replace("a0", "")

        def check():
            here = V.parse(t.__version__)
            return here >= V.Version("2.13")

        def shadowed(t):
            return t.__version__ >= "2.13"

        FIRST = BASE >= "2.9.0"
        SECOND = int(MINOR) >= 13
        THIRD = torch.version.__version__ < "2.9"
        OTHERS = [V.parse(t.x) >= V.parse("2.13") for t in ()]
        """
    )
    assert [(f.place.line, f.rule, bool(f.wrong)) for f in found.found] == [
        (16, "gate-version", True),
        (21, "gate-text", True),
        (22, "gate-numbers", False),
        (23, "gate-text", True),
    ]


HELPERS = """
import importlib.metadata
import operator as op
from functools import lru_cache
import torch
from packaging.version import parse

OPERATIONS = {">=": op.ge, "<": op.lt}
HERE = parse(importlib.metadata.version("torch"))
try:
    REAL = parse(torch.__version__)
except Exception:
    REAL = parse("0")


def marked(fn):
    setattr(fn, "marked", True)
    return fn


@lru_cache
@marked
def torch_is(operation: str, wanted: str, *, base: bool = False) -> bool:
    "Docstring."
    if operation not in OPERATIONS.keys():
        raise ValueError(operation)
    here = HERE
    if base:
        here = parse(here.base_version)
    compare = OPERATIONS[operation]
    return compare(here, parse(wanted))


def get_version():
    global REAL
    return REAL


def at_least(wanted):
    return get_version() >= parse(wanted)
"""


def test_helpers_are_followed_across_files(tmp_path):
    package = tmp_path / "pkg" / "utils"
    package.mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .versions import *\n")
    (package / "versions.py").write_text(HELPERS)
    (tmp_path / "pkg" / "user.py").write_text(
        "from .utils import at_least, torch_is\n"
        'A = torch_is(">=", "2.13")\n'
        'B = torch_is(">=", "2.13", base=True)\n'
        'C = torch_is("<", "2.13")\n'
        'D = at_least("2.13")  # torch\n'
        'E = torch_is("!", "2.13")\n'
    )
    whole = scan([str(tmp_path)], (), TABLE)
    alone = scan([str(tmp_path / "pkg" / "user.py")], (), TABLE)
    for found in (whole, alone):
        gates = {f.place.line: {a.build for a in f.wrong} for f in found.found}
        assert gates == {2: {ALPHA, NIGHTLY}, 3: set(), 4: {ALPHA, NIGHTLY}, 5: {ALPHA, NIGHTLY}}
        assert all(f.rule == "gate-helper" for f in found.found)


def test_what_cannot_be_evaluated_is_counted_and_not_guessed(scanned):
    found = scanned(HEAD + "def newer(than):\n    return Version(torch.__version__) >= Version(than)\n")
    assert found.found == []
    assert [(place.line, code) for place, code in found.unread] == [
        (6, "Version(torch.__version__) >= Version(than)")
    ]


@pytest.mark.parametrize(
    "trap",
    [
        "def f(x):\n    return f(x)\nA = f(torch.__version__) >= '2'",
        "A = A\nB = A >= torch.__version__",
        "A = B\nB = A\nC = A + torch.__version__ >= '2'",
        'A = re.match("(a+)+b", torch.__version__).group(1) >= "2"',
        'A = re.match("a*a*a*a*a*a*a*a*b", "' + "a" * 400 + '") or torch.__version__ >= "2"',
        'A = torch.__version__ * 10**9 >= "2"',
        'A = torch.__version__.replace(".", "x" * 10**9) >= "2"',
        'A = __import__("os").system("exit 1") == torch.__version__',
        "A = torch.__version__[0:9:0] >= '2'",
        "def g():\n    raise SystemExit\nA = g() or torch.__version__ >= '2.9'",
    ],
)
def test_hostile_code_is_neither_run_nor_waited_for(scanned, trap):
    found = scanned(HEAD + trap + "\n")
    assert [finding for finding in found.findings if finding.rule != "gate-version"] == []


def test_a_comment_silences_a_line(scanned):
    found = scanned(
        HEAD
        + 'A = torch.__version__ >= "2.13"  # torchcompat: ignore\ntorch.load = None  # torchcompat: ignore\n'
    )
    assert found.findings == []


# -- the classes that stand in for others' --------------------------------------------


@pytest.mark.torch
def test_the_stand_in_compares_as_torchs_own_class(python):
    out = python(
        """
        import itertools, operator
        from torch.torch_version import TorchVersion as Real
        from torchcompat.scan.table import BUILDS
        from torchcompat.scan.versions import TorchVersion as Ours

        def answer(function, *args):
            try:
                return function(*args)
            except Exception as error:
                return type(error).__name__

        others = ["2.13", "2.9.0", "parrot", (2, 13), [2, "10"], (), 2.13, None, "2.13.0a0"]
        names = "lt le gt ge eq ne".split()
        cases = 0
        for raw, other, name in itertools.product([*BUILDS, "parrot"], others, names):
            compare = getattr(operator, name)
            assert answer(compare, Real(raw), other) == answer(compare, Ours(raw), other), (raw, other, name)
            cases += 1
        print(cases)
        """
    )
    assert int(out.stdout) > 1000


def test_loose_and_strict_versions():
    assert LooseVersion("2.10.0") > LooseVersion("2.9")
    assert LooseVersion("2.13.0a0") >= "2.13.0"
    with pytest.raises(TypeError):
        LooseVersion("2.13.dev1") < LooseVersion("2.13.0")
    assert StrictVersion("2.13.0a1") < StrictVersion("2.13")
    with pytest.raises(ValueError, match="invalid version number '2.13.0\\+cu130'"):
        StrictVersion("2.13.0+cu130")


def test_the_table_is_of_real_versions():
    for raw in (*BUILDS, *RELEASES):
        assert TorchBuild.parse(raw).known
        Version(raw)
    assert len(set(BUILDS)) == len(BUILDS)
    stages = {str(TorchBuild.parse(raw).stage) for raw in BUILDS}
    assert {"alpha", "nightly", "rc", "release", "post"} <= stages


# -- patches -------------------------------------------------------------------------

PATCHES = [
    ("torch.load = safe", "torch.load", "patch-attribute"),
    ("torch.Tensor.gather: object = safe", "torch.Tensor.gather", "patch-attribute"),
    ("a, torch.nn.functional.gelu = safe, safe", "torch.nn.functional.gelu", "patch-attribute"),
    ("F.gelu = safe", "torch.nn.functional.gelu", "patch-attribute"),
    ("Module.to = safe", "torch.nn.Module.to", "patch-attribute"),
    ("setattr(torch.nn, 'Linear', safe)", "torch.nn.Linear", "patch-attribute"),
    ("setattr(Module, name, safe)", "torch.nn.Module.*", "patch-attribute"),
    ("delattr(Module, 'to')", "torch.nn.Module.to", "patch-attribute"),
    ("del torch.load", "torch.load", "patch-attribute"),
    ("SAC_IGNORED_OPS.add(op)", "torch.utils.checkpoint.SAC_IGNORED_OPS", "patch-container"),
    ("SAC_IGNORED_OPS.update({op})", "torch.utils.checkpoint.SAC_IGNORED_OPS", "patch-container"),
    ("SAC_IGNORED_OPS |= {op}", "torch.utils.checkpoint.SAC_IGNORED_OPS", "patch-container"),
    ("ckpt.SAC_IGNORED_OPS |= {op}", "torch.utils.checkpoint.SAC_IGNORED_OPS", "patch-container"),
    ("ops = ckpt.SAC_IGNORED_OPS\nops.add(op)", "torch.utils.checkpoint.SAC_IGNORED_OPS", "patch-container"),
    ("torch.x.table[op] = safe", "torch.x.table", "patch-container"),
    ("del torch.x.table[op]", "torch.x.table", "patch-container"),
    ("importlib.import_module('torch.a.b').c = safe", "torch.a.b.c", "patch-attribute"),
    ("sys.modules['torch.a'].c = safe", "torch.a.c", "patch-attribute"),
    ("getattr(torch, 'nn').Linear = safe", "torch.nn.Linear", "patch-attribute"),
    ("def f():\n    import torch.fx as fx\n    fx.wrap = safe", "torch.fx.wrap", "patch-attribute"),
]  # fmt: skip
PATCH_HEAD = """\
import importlib, sys
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as ckpt
from torch.nn import Module
from torch.utils.checkpoint import SAC_IGNORED_OPS
"""


@pytest.mark.parametrize(("code", "target", "rule"), PATCHES, ids=[case[0] for case in PATCHES])
def test_patches(scanned, code, target, rule):
    found = scanned(PATCH_HEAD + code + "\n")
    assert [(finding.target, finding.rule) for finding in found.findings] == [(target, rule)]


@pytest.mark.parametrize(
    "code",
    [
        "torch.backends.cudnn.benchmark = True",
        "torch._dynamo.config.cache_size_limit = 64",
        "torch._inductor.config.fallback_random = True",
        "x = torch.zeros(3)\nx.grad = None",
        "torch.add(a, b)",
        "torch.Tensor.add(a, b)",
        "class Mine(torch.nn.Module):\n    to = None",
        "def f(torch):\n    torch.load = None",
        "def f(F, Module):\n    F.gelu = Module.to = None",
        "model = torch.nn.Linear(2, 2)\nmodel.weight.data = None\nsetattr(model, 'bias', None)",
        "torch = None",
        "mine = set(SAC_IGNORED_OPS)\nmine.add(1)",
        "[torch.append(torch) for torch in ([],)]",
        "monkeypatch.setattr(torch, 'load', None)",
    ],
)
def test_what_is_no_patch(scanned, code):
    assert scanned(PATCH_HEAD + code + "\n").findings == []


def test_a_patch_and_its_undoing_are_one_finding(scanned):
    (finding,) = scanned("import torch\nold = torch.load\ntorch.load = new\ntorch.load = old\n").findings
    assert (finding.place.line, finding.also) == (3, (4,))


# -- shims ---------------------------------------------------------------------------


def test_edit_targets_are_those_of_the_edits_themselves():
    """What is read from the code of ``edits`` must be what the edits say of themselves."""
    shims = [shim for shim in Registry(plugins=False) if shim.retired is None]
    for shim in shims:
        assert edit_targets(shim), f"{shim.key}: no target found in the code of its edits"


@pytest.mark.torch
def test_edit_targets_against_the_live_edits(python):
    out = python(
        """
        from importlib import import_module
        from torchcompat.compile_cache import SaltCompileCache
        from torchcompat.errors import TorchCompatError
        from torchcompat.registry import Registry
        from torchcompat.scan.replaces import edit_targets

        checked = 0
        for shim in Registry(plugins=False):
            if shim.retired is not None:
                continue
            try:
                for name in shim.modules:
                    import_module(name)
                edits = shim.edits()
            except (ImportError, AttributeError, TorchCompatError):
                continue  # this torch is not one of those that the shim is for
            # A salt goes along with a cure; nobody patches the cache's keys by hand.
            edits = [edit for edit in edits if not isinstance(edit, SaltCompileCache)]
            # A call says after its target what of it it changes.
            targets = {edit.target.partition(" ")[0] for edit in edits if edit.target.startswith("torch")}
            missing = {t for t in targets if ":" in t} - edit_targets(shim)
            assert not missing, (shim.key, missing)
            checked += 1
        print(checked)
        """
    )
    assert int(out.stdout) >= 2


def test_the_shims_that_replace_a_patch_are_named(scanned):
    found = scanned(
        HEAD
        + "import torch.utils.checkpoint as c\n"
        + 'if Version(torch.__version__) >= Version("2.13"):\n    c.SAC_IGNORED_OPS.add(1)\n'
        + 'if Version(torch.__version__) >= Version("2.14"):\n    torch.save = None\n',
        shims=Registry(plugins=False),
    )
    shims = {(f.place.line, f.is_gate): f.shims for f in found.findings}
    assert shims[6, True] == shims[7, False] == ("sac_profiler", "sac_fsdp_ops")
    assert shims[8, True] == shims[9, False] == ()


def test_a_class_counts_through_whatever_module_it_was_reached():
    def edits():
        return "torch.a.b:Klass.method", "torch.c:function"

    replacements = Replacements([make_shim("mine", edits=edits)])
    assert replacements.of("torch.a.b.Klass.method") == ("mine",)
    assert replacements.of("torch.a.Klass.method") == ("mine",)
    assert replacements.of("torch.c.function") == ("mine",)
    assert replacements.of("torch.d.function") == ()
    assert Replacements([make_shim("old", edits=edits, retired="gone")]).of("torch.c.function") == ()


# -- files and formats ---------------------------------------------------------------

BAD = HEAD + 'ä = Version(torch.__version__) >= Version("2.13")\ntorch.load = None\n'


def test_files(tmp_path):
    (tmp_path / "good.py").write_text(BAD, encoding="utf-8")
    (tmp_path / "script").write_text(BAD, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import torch\nprint 1\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "binary.py").write_bytes(b"torch\x00\xff")
    for folder in ("venv", ".git", "__pycache__"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "skipped.py").write_text(BAD, encoding="utf-8")
    found = scan([str(tmp_path)])
    assert found.files == 4
    assert len(found.findings) == 2
    assert sorted(path.rpartition("/")[2] for path, _ in found.broken) == ["binary.py", "broken.py"]
    assert len(scan([str(tmp_path / "script")]).findings) == 2
    assert len(scan([str(tmp_path), str(tmp_path / "good.py")]).findings) == 2


@pytest.fixture
def bad(tmp_path, monkeypatch):
    (tmp_path / "a,b 1%.py").write_text(BAD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "a,b 1%.py"


def test_text(bad, capsys):
    assert cli.main(["scan", bad]) == 1
    out = capsys.readouterr().out
    assert "a,b 1%.py:5:5: gate-version: Version(torch.__version__) >= Version('2.13')" in out
    assert "False where True is meant on 2.13.0a0+8145d630e8" in out
    assert "torch.load is patched by hand (set)" in out
    assert "1 file: 1 gate on torch's version, 1 of them wrong on some build; 1 patch of torch" in out


def test_json(bad, capsys):
    assert cli.main(["scan", "--json", "--torch", ALPHA, "--torch", "2.12.1", bad]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["gates"], found["gates_wrong_somewhere"], found["patches"]) == (1, 1, 1)
    gate, patch = found["findings"]
    assert gate["wrong_on"] == [{"torch": ALPHA, "answers": "False", "meant": "True"}]
    assert gate["builds_tried"] == 2
    assert (patch["target"], patch["line"]) == ("torch.load", 6)


def test_sarif(bad, capsys):
    assert cli.main(["scan", "--format", "sarif", "."]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("warning", "note")
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "a%2Cb%201%25.py"
        assert physical["region"]["startLine"] in (5, 6)
        # A column counts characters: the ä before it is one.
        assert physical["region"]["startColumn"] == {5: 5, 6: 1}[physical["region"]["startLine"]]


def test_github(bad, capsys):
    assert cli.main(["scan", "--format", "github", bad]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "::warning file=a%2Cb 1%25.py,line=5,col=5,endLine=5,title=torchcompat gate-version::"
    )
    assert second.startswith("::notice file=a%2Cb 1%25.py,line=6,col=1,")


def test_every_format_bears_nothing_and_broken_files(tmp_path):
    (tmp_path / "broken.py").write_text("import torch\n(\n")
    found = scan([str(tmp_path)])
    for form in FORMATS.values():
        assert "broken.py" in form(found)
    assert found.findings == []


def test_nothing_found_is_0(tmp_path, capsys):
    (tmp_path / "fine.py").write_text("import torch\n")
    assert cli.main(["scan", str(tmp_path)]) == 0
    assert "1 file: 0 gates on torch's version" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-folder"], "there is no file or folder 'no-such-folder'"),
        (["--torch", "banana", "."], "'banana' is not a version of torch"),
    ],
)
def test_wrong_usage_is_2(arguments, says, capsys):
    assert cli.main(["scan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


def test_a_scan_imports_no_torch(tmp_path, fake_torch):
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    folder = fake_torch(init="raise RuntimeError('torch was imported')")
    done = call("scan", str(tmp_path / "bad.py"), path=[folder])
    assert done.returncode == 1
    assert done.stderr == ""
    assert "1 of them wrong" in done.stdout


def test_the_pre_commit_hook_names_our_command():
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "entry: torchcompat scan\n" in hooks


def test_our_own_code_has_nothing_to_find():
    found = scan([str(ROOT / "torchcompat")])
    assert [(f.place.path, f.code) for f in found.findings if f.is_gate] == []
    for path in (ROOT / "torchcompat").rglob("*.py"):
        ast.parse(path.read_text())
