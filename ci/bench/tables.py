"""The shapes that are timed, as data: (batch, heads, seqlen_q, seqlen_k, head_dim, causal)."""

# Long sequences: batch * seqlen = 16384, heads * head_dim = 2048.
LONG = [
    (16384 // seqlen, 2048 // head_dim, seqlen, seqlen, head_dim, causal)
    for head_dim in (64, 128)
    for causal in (False, True)
    for seqlen in (512, 2048, 8192)
]

# Sequences that fit into one tile, by the thousand.
SHORT = [
    (8000 if head_dim == 256 else 16000, 8, seqlen, seqlen, head_dim, False)
    for seqlen in (32, 64, 128)
    for head_dim in (32, 64, 128, 256)
]

TABLES = {"long": LONG, "short": SHORT}

# What --quick leaves out: they take longest, and so does the oracle.
QUICK_SEQLEN = 2048
