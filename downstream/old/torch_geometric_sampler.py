"""PyTorch Geometric's sampler of IBMB, which hands its data on to torch's Sampler."""

from torch.utils.data import DataLoader
from torch_geometric.loader.ibmb_loader import IBMBOrderedSampler

sampler = IBMBOrderedSampler([3, 1, 2])
assert [int(item) for item in DataLoader([10, 11, 12, 13], sampler=sampler, batch_size=None)] == [
    13,
    11,
    12,
]
