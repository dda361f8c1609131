"""catalyst's balanced sampler, which hands its labels on to torch's Sampler."""

from collections import Counter

from catalyst.data.sampler import BalanceClassSampler

labels = [0] * 9 + [1] * 3
drawn = Counter(labels[index] for index in BalanceClassSampler(labels, mode="downsampling"))
assert drawn == {0: 3, 1: 3}, drawn
