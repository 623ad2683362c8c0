"""The random numbers of the local search, in plain Python."""

MULTIPLIER, SEED_MULTIPLIER = 0x2545F4914F6CDD1D, 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class Xorshift64Star:
    """xorshift64*, as ``Xorshift64Star`` of partition/cuts/native/common.h."""

    def __init__(self, seed: int):
        self.state = (seed * SEED_MULTIPLIER + MULTIPLIER) & _MASK

    def next(self) -> int:
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & _MASK
        self.state ^= self.state >> 27
        return self.state * MULTIPLIER & _MASK

    def equal_seed(self) -> int:
        """The seed, as a signed integer of 64 bits, of a generator that goes on as this one does."""
        seed = (self.state - MULTIPLIER) * pow(SEED_MULTIPLIER, -1, 2**64) & _MASK
        return seed - 2**64 * (seed >= 2**63)
