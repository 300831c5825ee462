"""The shapes that are timed, as data: (batch, heads, seqlen_q, seqlen_k, head_dim, causal)."""

# Long sequences: batch * seqlen = 16384, heads * head_dim = 2048.
LONG = [
    (16384 // seqlen, 2048 // head_dim, seqlen, seqlen, head_dim, causal)
    for head_dim in (64, 128)
    for causal in (False, True)
    for seqlen in (512, 2048, 8192)
]

# Sequences that fit into one tile, by the thousand: each attending to itself, and its first token alone to all of it.
SHORT = [
    (8000 if head_dim == 256 else 16000, 8, 1 if one_query else seqlen, seqlen, head_dim, False)
    for one_query in (False, True)
    for seqlen in (32, 64, 128)
    for head_dim in (32, 64, 128, 256)
]

# So little work that the launch and the host show.
SMALL = [
    (batch, 8, seqlen, seqlen, head_dim, False)
    for batch in (1, 16, 256)
    for seqlen in (32, 64, 128)
    for head_dim in (32, 64, 128, 256)
]

TABLES = {"long": LONG, "short": SHORT, "small": SMALL}

# What is timed beside attest.
BESIDE = {
    "long": ("FA2", "memeff", "cuDNN"),
    "short": ("FA2", "memeff", "cuDNN", "math", "whole"),
    "small": ("empty",),
}

# What --quick leaves out: they take longest, and so does the oracle.
QUICK_SEQLEN = 2048
