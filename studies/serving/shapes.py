"""Shapes of decoders: what a model computes and reads, without its weights."""

from __future__ import annotations

from dataclasses import dataclass

# Rows and columns of a result that one SM computes at a time in large GEMMs.
TILE_ROWS, TILE_COLUMNS = 128, 256


@dataclass(frozen=True)
class Shape:
    """A decoder with grouped-query attention and a gated MLP."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    head_size: int = 128

    @property
    def group(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def qkv(self) -> int:
        """Columns of the joint projection of queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_size

    def tokens_of_waves(self, sms: int, waves: int, most: int = 4096) -> int:
        """The largest chunk of a prompt whose GEMMs keep so many SMs busy in whole waves.

        Decided by the GEMMs with the fewest columns, in which waves are few: 2048 tokens take two waves on 132 SMs, and
        three on 116, which compute 1792 tokens in two.
        """
        columns = -(-self.hidden // TILE_COLUMNS)
        return min(most, TILE_ROWS * max(1, waves * sms // columns))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("8B", layers=32, hidden=4096, heads=32, kv_heads=8, mlp=14336, vocabulary=128256),
        Shape("34B", layers=48, hidden=8192, heads=64, kv_heads=8, mlp=22016, vocabulary=64000),
        Shape("tiny", layers=2, hidden=64, heads=4, kv_heads=2, mlp=96, vocabulary=128, head_size=16),
    )
}
