"""accelerate's checkpoint of an object of the user's whose state has a defaultdict in it."""

import tempfile
from collections import defaultdict

import numpy
from accelerate import Accelerator


class Counts:
    def __init__(self) -> None:
        self.seen: dict[str, object] = defaultdict(int)

    def state_dict(self) -> dict[str, object]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.seen = state["seen"]


with tempfile.TemporaryDirectory() as folder:
    accelerator, counts = Accelerator(cpu=True), Counts()
    accelerator.register_for_checkpointing(counts)
    counts.seen["loss"] = numpy.float64(2.5)
    accelerator.save_state(folder)
    counts.seen = {}
    accelerator.load_state(folder)
    assert counts.seen["loss"] == 2.5
    assert counts.seen["new"] == 0
