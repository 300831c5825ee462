"""For pytest and unittest: a failure names tensor, index, both values and the share of the bound."""

from dataclasses import dataclass

import numpy as np

from ._audit import Report, audit


def assert_attention_close(q, k, v, *, statistical=False, **results_and_how):
    """audit(), and AssertionError where it does not pass. Every element must be within its proven bound; the
    statistical verdict, with a false alarm in 1e9 tensors of ordinary inputs, is asked for by statistical=True."""
    report = audit(q, k, v, statistical=statistical, **results_and_how)
    if not report.passed:
        raise AssertionError("\n".join(report.sentences()) + "\n" + report.table())
    return report


@dataclass(frozen=True)
class Counterexample:
    """Inputs, shrunk, on which an implementation does not pass."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    family: str
    seed: int
    report: Report

    def __str__(self):
        return (f"family {self.family}, seed {self.seed}, shrunk to q {self.q.shape} and k {self.k.shape}\n"
                f"{self.report.table()}")


def _falling(r, shape):
    """Rows that become smaller and smaller: maxima of scores fall from block to block of keys."""
    return r.random(shape, dtype=np.float32) * np.linspace(2, 0, shape[2], dtype=np.float32)[:, None]


# q, k and v of a shape, in order of how unusual they are.
FAMILIES = {
    "uniform": lambda r, q, k, v: [r.random(s, dtype=np.float32) for s in (q, k, v)],
    "normal": lambda r, q, k, v: [r.standard_normal(s, dtype=np.float32) for s in (q, k, v)],
    "mean": lambda r, q, k, v: [4 + r.standard_normal(s, dtype=np.float32) for s in (q, k, v)],
    "large": lambda r, q, k, v: [30 * r.standard_normal(s, dtype=np.float32) for s in (q, k, v)],
    "falling": lambda r, q, k, v: [32 * r.random(q, dtype=np.float32), 32 * _falling(r, k),
                                   r.standard_normal(v, dtype=np.float32)],
}


def _shrinks(q, k, v):
    """Smaller inputs than these, boldest first: halves of each axis, then smaller numbers."""
    heads, rows_q, rows_k, features = k.shape[1], q.shape[2], k.shape[2], k.shape[3]
    if q.shape[0] > 1:
        yield q[:1], k[:1], v[:1]
        yield q[1:], k[1:], v[1:]
    if heads > 1 and q.shape[1] == heads:
        yield q[:, :1], k[:, :1], v[:, :1]
        yield q[:, 1:], k[:, 1:], v[:, 1:]
    for part in (slice(None, rows_q // 2), slice(rows_q // 2, None)):
        if rows_q > 1:
            yield q[:, :, part], k, v
    for part in (slice(None, rows_k // 2), slice(rows_k // 2, None)):
        if rows_k > 1:
            yield q, k[:, :, part], v[:, :, part]
    if rows_k > 1:
        yield q, k[:, :, 1:], v[:, :, 1:]
        yield q, k[:, :, :-1], v[:, :, :-1]
    if features > 1:
        yield q[..., :features // 2], k[..., :features // 2], v
    if v.shape[-1] > 1:
        yield q, k, v[..., :v.shape[-1] // 2]
    yield q, np.trunc(k), v
    yield np.trunc(q), k, v
    yield q, k, np.trunc(v)


def find_counterexample(implementation, *, batch=1, heads=2, rows_q=16, rows_k=256, head_dim=32, tries=3, seed=0,
                        families=None, **how):
    """Calls implementation(q, k, v) -> o in [batch, heads, rows, features], fp32, on numbers of each family, audits
    what comes back, and shrinks the first inputs that do not pass: a Counterexample, or None. `how` is audit()'s."""
    how = {"statistical": False, "recipe": "fp32", **how}

    def judge(inputs):
        inputs = [np.ascontiguousarray(x) for x in inputs]
        return inputs, audit(*inputs, o=np.ascontiguousarray(implementation(*inputs), np.float32), **how)

    shapes = [(batch, heads, n, head_dim) for n in (rows_q, rows_k, rows_k)]
    for family in families or FAMILIES:
        for number in range(seed, seed + tries):
            inputs, report = judge(FAMILIES[family](np.random.default_rng(number), *shapes))
            if not report.passed:
                while True:
                    smaller = next((c for c in map(judge, _new(inputs)) if _fails_alike(c[1], report)), None)
                    if smaller is None:
                        return Counterexample(*inputs, family, number, report)
                    inputs, report = smaller
    return None


def _new(inputs):
    """Shrinks that change something."""
    for smaller in _shrinks(*inputs):
        if any(a.shape != b.shape or not np.array_equal(a, b) for a, b in zip(smaller, inputs)):
            yield smaller


def _fails_alike(report, first):
    """Not only does it fail: a NaN stays one, so that shrinking does not end at another fault."""
    mine, its = report.tensors["o"], first.tensors["o"]
    return mine.verdict == its.verdict and (mine.nan_count > 0) == (its.nan_count > 0)
