"""The shapes that are timed, as data, and what a shape is."""

import typing

SOFTCAP, DROPOUT = 50, 0.1
BLOCK = 128  # rows and columns of a block of a block mask
VISIBLE, USED = 0.8, 0.75  # of scores under a mask; of keys under seqused: lengths are half of seqlen to all of it

# What can be asked of scores; `dbias` has a bias, too. Masks are [batch, 1, 1, seqlen_k] and [batch, 1, seqlen_q,
# seqlen_k], biases [1, heads, seqlen_q, seqlen_k].
FEATURES = ("sink", "alibi", "mask_k", "mask", "seqused", "bias", "dbias", "softcap", "dropout", "block_mask")


class Shape(typing.NamedTuple):
    """A problem. Records hold the fields by name; those that older ones lack are as the defaults say."""
    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool = False
    heads_kv: int = 0  # 0: as many as heads
    head_dim_v: int = 0  # 0: head_dim
    window: int = 0  # keys before the query's own that a causal row sees; 0: all
    rows_first: bool = False  # [batch][seqlen][heads][head_dim], else [batch][heads][seqlen][head_dim]
    features: typing.Tuple[str, ...] = ()
    blocks: int = 8  # under a block mask one block in so many is visible

    @property
    def kv(self):
        return self.heads_kv or self.heads

    @property
    def dim_v(self):
        return self.head_dim_v or self.head_dim

    def has(self, feature):
        return feature in self.features or (feature == "bias" and "dbias" in self.features)

    def visible(self):
        """The share of scores that no mask hides by whole rows, columns or blocks, so that a kernel can leave them
        out. A causal mask over equal lengths hides half, as is usual to count."""
        share = 1.0
        if self.causal and self.window:  # of equal lengths
            share = self.window / self.seqlen_k * (1 - self.window / self.seqlen_k / 2)
        elif self.causal:
            share = 1 - self.seqlen_q / self.seqlen_k / 2
        if self.has("seqused"):
            share *= USED
        return share * (1 / self.blocks if self.has("block_mask") else 1)


    def named(self):
        """What is not plain, as words."""
        if len(self.features) > 4:
            return ("all",)
        asked = [word for word, is_so in (("causal", self.causal), ("window", self.window),
                                          ("gqa", self.kv != self.heads), ("few", self.has_few_rows())) if is_so]
        return (*self.features, *asked) or ("plain",)

    def has_few_rows(self):
        """On many keys, as when a part of a long prompt is read."""
        return 1 < self.seqlen_q < self.seqlen_k

    def directions(self):
        if self.has_few_rows():
            return ("forward",)
        return ("backward",) if self.features == ("dbias",) else ("forward", "backward")

    def plain(self):
        """The same without what is named."""
        return self._replace(causal=False, window=0, heads_kv=0, features=(), blocks=8)


def of_row(row):
    """The shape of a record's row."""
    fields = {name: row[name] for name in Shape._fields if name in row}
    return Shape(**{**fields, "features": tuple(fields.get("features", ()))})




def of_tokens(seqlen, heads, head_dim, causal=False, **others):
    """16384 tokens, in the layout that models have them."""
    return Shape(16384 // seqlen, heads, seqlen, seqlen, head_dim, causal, rows_first=True, **others)


# Long sequences: heads * head_dim = 2048, or the next below with a power of two of heads; groups, a window and
# features of v that are fewer; few rows on many keys.
LONG = [
    of_tokens(seqlen, heads, head_dim, causal)
    for head_dim, heads in ((64, 32), (96, 16), (128, 16), (192, 8), (256, 8))
    for causal in (False, True)
    for seqlen in (512, 1024, 2048, 4096, 8192, 16384)
] + [
    of_tokens(seqlen, heads, 128, True, heads_kv=8) for heads in (32, 64) for seqlen in (2048, 8192)
] + [
    of_tokens(8192, heads, head_dim, True, window=1024) for head_dim, heads in ((64, 32), (128, 16))
] + [
    of_tokens(seqlen, 16, 192, causal, head_dim_v=128) for causal in (False, True) for seqlen in (2048, 8192)
] + [
    Shape(1, heads, seqlen_q, 65536, 128, heads_kv=heads_kv, rows_first=True)
    for heads, heads_kv in ((8, 1), (9, 9)) for seqlen_q in (512, 1024, 2048, 4096, 8192)
]

# Sequences that fit into one tile, by the thousand: each attending to itself, and its first token alone to all of it.
SHORT = [
    Shape(8000 if head_dim == 256 else 16000, 8, 1 if one_query else seqlen, seqlen, head_dim)
    for one_query in (False, True)
    for seqlen in (32, 64, 128)
    for head_dim in (32, 64, 128, 256)
]

# So little work that the launch and the host show.
SMALL = [
    Shape(batch, 8, seqlen, seqlen, head_dim)
    for batch in (1, 16, 256)
    for seqlen in (32, 64, 128)
    for head_dim in (32, 64, 128, 256)
]


def featured(plain):
    """A shape without and with each feature, and with all."""
    group = plain.heads // 4
    found = [plain._replace(features=(feature,)) for feature in FEATURES if feature != "block_mask"]
    found += [plain._replace(causal=True), plain._replace(heads_kv=group)]
    if plain.seqlen_k == 8192:
        found += [plain._replace(features=("block_mask",), blocks=blocks) for blocks in (2, 4, 8, 16)]
    together = ("sink", "alibi", "mask", "seqused", "dbias", "softcap", "dropout")
    return [plain, *found, plain._replace(causal=True, heads_kv=group, features=together)]


# What is not plain, alone and together.
FEATURED = [
    shape
    for plain in [Shape(16000, 8, seqlen, seqlen, head_dim) for seqlen in (64, 128) for head_dim in (32, 64, 128)]
    + [Shape(16384 // seqlen, 2048 // head_dim, seqlen, seqlen, head_dim) for seqlen in (2048, 8192)
       for head_dim in (64, 128)]
    for shape in featured(plain)
]

TABLES = {"long": LONG, "short": SHORT, "small": SMALL, "features": FEATURED}

# What is timed beside attest.
BESIDE = {
    "long": ("FA2", "FA3", "FA4", "cuDNN", "flex"),
    "short": ("FA2", "memeff", "cuDNN", "math", "whole"),
    "small": ("empty",),
    "features": ("FA2", "FA3", "FA4", "memeff", "cuDNN", "flex"),
}


def takes_part(name, shape):
    """FlexAttention compiles for seconds on every row, so it is asked where the others do not take a row, or a bias."""
    return name != "flex" or shape.window > 0 or any(map(shape.has, ("sink", "alibi", "softcap", "bias", "block_mask")))


# What --quick leaves out: they take longest, and so does the oracle.
QUICK_SEQLEN = 2048

# How the words of --only choose: of those of one line any, but of each line.
KINDS = {
    "feature": lambda shape, direction: shape.named(),
    "length": lambda shape, direction: ("short" if shape.seqlen_k <= 128 else "long",),
    "seqlen": lambda shape, direction: (f"seqlen{shape.seqlen_k}",),
    "head_dim": lambda shape, direction: (f"dim{shape.head_dim}",),
    "direction": lambda shape, direction: (direction,),
}


def rows(table):
    return [(shape, direction) for shape in TABLES[table] for direction in shape.directions()]


def words(table):
    """By kind, those that some row has."""
    return {kind: list(dict.fromkeys(word for row in rows(table) for word in of(*row))) for kind, of in KINDS.items()}


def chosen(table, only, most_seqlen):
    """Rows (shape, direction): those that the words of `only` choose, none: all."""
    wanted = {kind: set(only).intersection(known) for kind, known in words(table).items()}
    return [row for row in rows(table) if row[0].seqlen_k <= most_seqlen
            and all(not wanted[kind] or wanted[kind].intersection(of(*row)) for kind, of in KINDS.items())]
