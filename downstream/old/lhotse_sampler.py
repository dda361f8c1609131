"""lhotse's stateless sampler of speech cuts, which hands None on to torch's Sampler."""

import tempfile
from pathlib import Path

from lhotse import CutSet
from lhotse.dataset.sampling.stateless import StatelessSampler
from lhotse.testing.dummies import dummy_cut

with tempfile.TemporaryDirectory() as folder:
    cuts = Path(folder) / "cuts.jsonl"
    CutSet.from_cuts(dummy_cut(number) for number in range(10)).to_file(cuts)
    sampler = StatelessSampler(cuts, index_path=Path(folder) / "cuts.idx", base_seed=0, max_cuts=4)
    batch = next(iter(sampler))
    assert len(batch) == 4, batch
