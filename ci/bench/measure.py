"""Times every implementation on every shape: alternating call by call, in an order drawn anew each round."""

import contextlib
import random
import statistics
import time

import ours
import peers
import tables

SAMPLES, QUICK_SAMPLES, WARM_UP = 25, 5, 3
COPY_BYTES = 2 << 30
REST_S = 0.01  # before each sample: else its clock depends on how hot the one before was
FLUSH_BYTES, FLUSHES = 1 << 30, 4  # many times the L2; writing it takes longer than the host needs to queue calls
DRAWN = 1 << 23  # random numbers of each input; longer inputs repeat them
MATRIX = 8192
CALLS = 40  # queued in a row, of small problems
FAMILY_BATCH = 4  # sequences of the inputs that errors alone are taken on


class Bench:
    """Buffers for the largest shapes of a table, with random inputs in them; `beside`: what is timed beside attest, of
    it what PyTorch has if that is there."""

    def __init__(self, cuda, library, dtype, shapes, beside=()):
        self.cuda, self.library, self.dtype, self.beside = cuda, library, dtype, beside
        self.torch = peers.load() if beside else None
        self.sizes = {name: max(tensor_bytes(name, shape) for shape in shapes) for name in ours.TENSORS}
        self.pointers = {name: cuda.allocate(size) for name, size in self.sizes.items()}
        self.flush_bytes = max(FLUSH_BYTES, 2 * cuda.l2_bytes())
        self.flush = cuda.allocate(self.flush_bytes)
        self.draw("normal")

    def draw(self, family):
        """Inputs of a family."""
        for name in ours.INPUTS:
            pointer, size = self.pointers[name], self.sizes[name]
            drawn = min(size, DRAWN * 2)
            self.cuda.upload(pointer, self.library.draw(self.dtype, family, name, drawn // 2), drawn)
            for offset in range(drawn, size, drawn):
                self.cuda.copy(pointer + offset, pointer, min(drawn, size - offset))

    def sample_ms(self, call):
        """One timed call behind another of the same: the L2 is as that left it."""
        time.sleep(REST_S)
        self.keep_busy()
        call()
        return self.cuda.time_ms(call)

    def keep_busy(self):
        """The GPU, while the host queues what is to be timed; the L2 is flushed."""
        for _ in range(FLUSHES):
            self.cuda.fill(self.flush, 0, self.flush_bytes)

    def sample_queued(self, queue):
        """Milliseconds on the GPU of what `queue` queues, and what it returns."""
        self.keep_busy()
        returned = []
        return self.cuda.time_ms(lambda: returned.append(queue())), returned[0]

    def last_heads(self, name, shape):
        """Bytes of a tensor's last heads of the last sequence, as many as are checked."""
        size = tensor_bytes(name, shape)
        heads = size // (shape[0] * shape[1]) * heads_checked(shape)
        return self.cuda.download(self.pointers[name] + size - heads, heads)

    def oracle(self, shape):
        """What is right in the heads that are checked."""
        inputs = {name: self.last_heads(name, shape) for name in ours.INPUTS}
        return ours.oracle(self.library, self.dtype, heads_checked(shape), *shape[2:], inputs)

    def error(self, tensor, got, want):
        return self.library.relative_error("fp32" if tensor == "lse" else self.dtype, got, want[tensor])

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


def heads_checked(shape):
    """All heads of a sequence where it is short; the oracle takes long over long ones."""
    return shape[1] if shape[3] <= 128 else 1


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

    def queue(self):
        return self.plan.queue(self.bench.pointers, self.workspace, self.workspace_bytes, CALLS)

    def last_heads(self, _):
        return {name: self.bench.last_heads(name, self.shape) for name in ours.RESULTS[self.direction]}

    def close(self):
        self.bench.cuda.synchronize()
        self.bench.cuda.free(self.workspace)
        self.plan.destroy()


class Empty:
    """An empty kernel, to be queued beside attest's."""

    def __init__(self, library):
        self.library = library

    def queue(self):
        return self.library.queue_empty(CALLS)

    def last_heads(self, _):
        return {}

    def close(self):
        pass


def makers(bench, shape, direction):
    """By name, a function that makes what is to be timed, or refuses."""
    batch, heads, seqlen_q, seqlen_k, head_dim, causal = shape
    found = {"attest": lambda: Ours(bench, shape, direction)}
    if "empty" in bench.beside:
        found["empty"] = lambda: Empty(bench.library)
    elif bench.torch is not None:
        inputs = {name: peers.view(bench.torch, bench.dtype, bench.pointers[name],
                                   (batch, heads, seqlen_k if name in "kv" else seqlen_q, head_dim))
                  for name in ours.INPUTS}
        for name in bench.beside:
            found[name] = lambda name=name: peers.Backend(bench.torch, name, inputs, causal, direction)
    return found


def contestants(bench, shape, direction, want):
    """(runs, running), by name: what a record says, errors or a refusal so far, and what is to be timed. `want`: the
    oracle's last heads."""
    runs, running = {}, {}
    for name, make in makers(bench, shape, direction).items():
        try:
            contestant = make()
            errors = {tensor: bench.error(tensor, got, want)
                      for tensor, got in contestant.last_heads(heads_checked(shape)).items()}
        except ours.Refused as sentence:
            runs[name] = {"refused": str(sentence)}
            continue
        runs[name], running[name] = {"errors": errors}, contestant
    if "attest" in running:
        runs["attest"]["kernel"] = running["attest"].plan.kernel()
    return runs, running


def row(shape, direction, runs):
    batch, heads, seqlen_q, seqlen_k, head_dim, causal = shape
    return {"batch": batch, "heads": heads, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "head_dim": head_dim,
            "causal": causal, "direction": direction, "runs": runs}


def sample_call(bench, contestant):
    with contestant.context():
        return {"samples_ms": bench.sample_ms(contestant.call)}


def sample_queue(bench, contestant):
    milliseconds, host_ns = bench.sample_queued(contestant.queue)
    return {"samples_ms": milliseconds / CALLS, "host_ns": host_ns / CALLS}


def sample_or_refusal(bench, contestant, sample):
    """Memory may run out only now, on all sequences."""
    try:
        return sample(bench, contestant)
    except ours.Refused as sentence:
        return str(sentence)


def take_rounds(bench, runs, running, rounds, sample):
    """Samples into `runs`, in an order drawn anew each round; who refuses is out. Closes them all."""
    for i in range(WARM_UP + rounds):
        for name in random.sample(list(running), len(running)):
            found = sample_or_refusal(bench, running[name], sample)
            if isinstance(found, str):
                running.pop(name).close()
                runs[name] = {"errors": runs[name]["errors"], "refused": found}
            elif i >= WARM_UP:
                for key, value in found.items():
                    runs[name].setdefault(key, []).append(value)
    for contestant in running.values():
        contestant.close()


def time_row(bench, shape, direction, want, rounds, sample=sample_call):
    """One row of a table: samples and errors of every implementation."""
    runs, running = contestants(bench, shape, direction, want)
    alone = {name: running.pop(name) for name in ("math",) if name in running}
    for group in (running, alone):  # math takes so much memory that the others would wait for theirs
        take_rounds(bench, runs, group, rounds, sample)
    return row(shape, direction, runs)


def add_error_rows(rows, bench, shapes, progress):
    """Errors alone, on the other input families, of a few sequences of each shape."""
    for family in list(ours.FAMILIES)[1:]:
        bench.draw(family)
        for shape in shapes:
            few = (min(FAMILY_BATCH, shape[0]), *shape[1:])
            progress(few)
            want = bench.oracle(few)
            for direction in ours.RESULTS:
                runs, running = contestants(bench, few, direction, want)
                for contestant in running.values():
                    contestant.close()
                rows.append({"family": family, **row(few, direction, runs)})


def measure(cuda, library, table, dtype, shapes, rounds, progress):
    """Everything that report.py prints. `progress` is told of each row as it begins, and of what there is by then."""
    random.seed(1)
    bench = Bench(cuda, library, dtype, shapes, tables.BESIDE[table])
    torch = bench.torch
    record = {"table": table, "dtype": dtype, "gpu": cuda.name(), "driver": cuda.driver_version(),
              "torch": torch.__version__ if torch else None,
              "cudnn": torch.backends.cudnn.version() if torch else None,
              "copy_bytes_per_s": bench.copy_bytes_per_s(), "matrix_flops_per_s": bench.matrix_flops_per_s(),
              "rows": []}
    sample = sample_queue if table == "small" else sample_call

    def begins(shape):
        progress(shape, record)

    for shape in shapes:
        begins(shape)
        want = bench.oracle(shape)
        for direction in ours.RESULTS:
            record["rows"].append(time_row(bench, shape, direction, want, rounds, sample))
    if table == "short":
        record["error_rows"] = []
        add_error_rows(record["error_rows"], bench, shapes, begins)
    return record
