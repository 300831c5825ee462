"""Times every implementation on every shape: alternating call by call, in an order drawn anew each round."""

import contextlib
import random
import statistics

import ours
import peers

SAMPLES, QUICK_SAMPLES, WARM_UP = 25, 5, 3
COPY_BYTES = 2 << 30
FLUSH_BYTES = 1 << 30  # many times the L2; writing it takes longer than the host needs to queue a call
DRAWN = 1 << 23  # random numbers of each input; longer inputs repeat them
MATRIX = 8192


class Bench:
    """Buffers for the largest shapes of a table, with random inputs in them, and PyTorch, if it is there."""

    def __init__(self, cuda, library, dtype, shapes, with_torch=True):
        self.cuda, self.library, self.dtype = cuda, library, dtype
        self.torch = peers.load() if with_torch else None
        self.sizes = {name: max(tensor_bytes(name, shape) for shape in shapes) for name in ours.TENSORS}
        self.pointers = {name: cuda.allocate(size) for name, size in self.sizes.items()}
        self.flush_bytes = max(FLUSH_BYTES, 2 * cuda.l2_bytes())
        self.flush = cuda.allocate(self.flush_bytes)
        for seed, name in enumerate(("q", "k", "v", "dout")):
            self._draw(name, seed)

    def _draw(self, name, seed):
        pointer, size = self.pointers[name], self.sizes[name]
        drawn = min(size, DRAWN * 2)
        self.cuda.upload(pointer, self.library.normal(self.dtype, drawn // 2, seed), drawn)
        for offset in range(drawn, size, drawn):
            self.cuda.copy(pointer + offset, pointer, min(drawn, size - offset))

    def sample_ms(self, call):
        """One timed call with a cold L2."""
        self.cuda.fill(self.flush, 0, self.flush_bytes)
        return self.cuda.time_ms(call)

    def last_head(self, name, shape):
        """Bytes of a tensor's last head of the last sequence."""
        size = tensor_bytes(name, shape)
        head = size // (shape[0] * shape[1])
        return self.cuda.download(self.pointers[name] + size - head, head)

    def copy_bytes_per_s(self):
        """Bytes read and written a second by a large copy."""
        a, b = self.cuda.allocate(COPY_BYTES), self.cuda.allocate(COPY_BYTES)
        median = statistics.median(self.sample_ms(lambda: self.cuda.copy(b, a, COPY_BYTES)) for _ in range(SAMPLES))
        self.cuda.free(a)
        self.cuda.free(b)
        return 2 * COPY_BYTES / (median * 1e-3)

    def matrix_flops_per_s(self):
        """Of a product of large random matrices by PyTorch; None without it."""
        if self.torch is None:
            return None
        dtype = peers.torch_dtype(self.torch, self.dtype)
        a, b = (self.torch.randn(MATRIX, MATRIX, device="cuda", dtype=dtype) for _ in range(2))
        median = statistics.median(self.sample_ms(lambda: self.torch.matmul(a, b)) for _ in range(SAMPLES))
        return 2 * MATRIX**3 / (median * 1e-3)


def tensor_bytes(name, shape):
    batch, heads, seqlen_q, seqlen_k, head_dim, _ = shape
    rows = batch * heads * (seqlen_k if name in ("k", "v", "dk", "dv") else seqlen_q)
    return rows * 4 if name == "lse" else rows * head_dim * 2


class Ours:
    """attest on one shape, in one direction; the same methods as peers.Backend. Results are poisoned first. Backward
    reads the o and lse that the forward row before it has left."""

    def __init__(self, bench, shape, direction):
        self.bench, self.shape, self.direction = bench, shape, direction
        self.plan = ours.Plan(bench.library, ours.CUDA, bench.dtype, shape, direction)
        self.workspace_bytes = self.plan.workspace_bytes()
        self.workspace = bench.cuda.allocate(self.workspace_bytes)
        bench.cuda.fill(self.workspace, 0xFF, self.workspace_bytes)
        for name in ours.RESULTS[direction]:
            bench.cuda.fill(bench.pointers[name], 0xFF, tensor_bytes(name, shape))
        self.call()

    def context(self):
        return contextlib.nullcontext()

    def call(self):
        self.plan.run(self.bench.pointers, self.workspace, self.workspace_bytes)

    def last_heads(self):
        return {name: self.bench.last_head(name, self.shape) for name in ours.RESULTS[self.direction]}

    def close(self):
        self.bench.cuda.synchronize()
        self.bench.cuda.free(self.workspace)
        self.plan.destroy()


def contestants(bench, shape, direction):
    """By name, what is to be timed, or the sentence with which it refuses."""
    batch, heads, seqlen_q, seqlen_k, head_dim, causal = shape
    makers = {"attest": lambda: Ours(bench, shape, direction)}
    if bench.torch is not None:
        inputs = {name: peers.view(bench.torch, bench.dtype, bench.pointers[name],
                                   (batch, heads, seqlen_k if name in "kv" else seqlen_q, head_dim))
                  for name in ("q", "k", "v", "dout")}
        for name in peers.BACKENDS:
            makers[name] = lambda name=name: peers.Backend(bench.torch, name, inputs, causal, direction)
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ours.Refused as sentence:
            found[name] = str(sentence)
    return found


def time_row(bench, shape, direction, want, rounds):
    """One row of a table: samples and errors of every implementation. `want`: the oracle's last head."""
    runs, running = {}, {}
    for name, contestant in contestants(bench, shape, direction).items():
        if isinstance(contestant, str):
            runs[name] = {"refused": contestant}
            continue
        errors = {tensor: bench.library.relative_error("fp32" if tensor == "lse" else bench.dtype, got, want[tensor])
                  for tensor, got in contestant.last_heads().items()}
        runs[name] = {"errors": errors, "samples_ms": []}
        running[name] = contestant
    if "attest" in running:
        runs["attest"]["kernel"] = running["attest"].plan.kernel()
    order = list(running)
    for i in range(WARM_UP + rounds):
        random.shuffle(order)
        for name in order:
            with running[name].context():
                sample = bench.sample_ms(running[name].call)
            if i >= WARM_UP:
                runs[name]["samples_ms"].append(sample)
    for contestant in running.values():
        contestant.close()
    batch, heads, seqlen_q, seqlen_k, head_dim, causal = shape
    return {"batch": batch, "heads": heads, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim,
            "causal": causal, "direction": direction, "runs": runs}


def measure(cuda, library, table, dtype, shapes, rounds, progress):
    """Everything that report.py prints. `progress` is told of each row as it begins."""
    random.seed(1)
    bench = Bench(cuda, library, dtype, shapes)
    torch = bench.torch
    record = {"table": table, "dtype": dtype, "gpu": cuda.name(), "driver": cuda.driver_version(),
              "torch": torch.__version__ if torch else None,
              "cudnn": torch.backends.cudnn.version() if torch else None,
              "copy_bytes_per_s": bench.copy_bytes_per_s(), "matrix_flops_per_s": bench.matrix_flops_per_s(),
              "rows": []}
    for shape in shapes:
        progress(shape)
        inputs = {name: bench.last_head(name, shape) for name in ("q", "k", "v", "dout")}
        want = ours.oracle(library, dtype, *shape[2:], inputs)
        for direction in ours.RESULTS:
            record["rows"].append(time_row(bench, shape, direction, want, rounds))
    return record
