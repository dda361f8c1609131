"""accelerate's checkpoint of an object of the user's whose state has a numpy number in it."""

import tempfile

import numpy
from accelerate import Accelerator


class Best:
    def __init__(self) -> None:
        self.loss = numpy.float64("inf")

    def state_dict(self) -> dict[str, object]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.loss = state["loss"]


with tempfile.TemporaryDirectory() as folder:
    accelerator, best = Accelerator(cpu=True), Best()
    accelerator.register_for_checkpointing(best)
    best.loss = numpy.float64(2.5)
    accelerator.save_state(folder)
    best.loss = None
    accelerator.load_state(folder)
    assert best.loss == 2.5
    assert isinstance(best.loss, numpy.float64)
