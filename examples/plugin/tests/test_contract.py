"""torchcompat's contract, for our shim."""

from torchcompat.testing import ShimContract


class TestOurShims(ShimContract):
    keys = ("example_one_hot_int32",)
