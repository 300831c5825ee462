"""Times every implementation on every shape: alternating call by call, in an order drawn anew each round."""

import contextlib
import ctypes
import functools
import itertools
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
REFUSALS = (ours.Refused, RuntimeError)  # the driver's, as where there is no memory for a workspace, is the latter
MOST_CHECKED = 8192**2  # scores of the part whose errors are taken: the oracle takes some seconds
INPUTS = (*ours.INPUTS, "bias", "mask", "block_mask", "alibi_slopes", "sink", "seqused_k")
FAMILY_BATCH = 4  # sequences of the inputs that errors alone are taken on


class Bench:
    """Buffers for shapes, with random inputs in them; `beside`: what is timed beside attest, of it what PyTorch has if
    that is there."""

    def __init__(self, cuda, library, dtype, shapes, beside=()):
        self.cuda, self.library, self.dtype, self.beside = cuda, library, dtype, beside
        self.torch = peers.load() if beside else None
        self.sizes, self.pointers, self.drawn = {}, {}, {}
        self.flush_bytes = max(FLUSH_BYTES, 2 * cuda.l2_bytes())
        self.flush = cuda.allocate(self.flush_bytes)
        self.hold(shapes)

    def hold(self, shapes):
        """Buffers for the largest of these shapes, instead of those before."""
        for pointer in self.pointers.values():
            self.cuda.free(pointer)
        self.sizes, self.pointers = {}, {}
        for shape in shapes:
            for name in ours.tensors_of(shape):
                self.sizes[name] = max(self.sizes.get(name, 0), ours.tensor_bytes(name, shape))
        for name, size in self.sizes.items():
            self.pointers[name] = self.cuda.allocate(size)
        self.draw("normal")

    def draw(self, family):
        """Inputs of a family; biases and sinks are normal always."""
        for name in self.sizes:
            if name in ours.INPUTS:
                self.fill(name, family, self.dtype)
            elif name in ("bias", "sink"):
                self.fill(name, "normal", ours.dtype_of(name, self.dtype))
            elif name == "mask":
                drawn = min(self.sizes["mask"], DRAWN)
                self.repeat("mask", random_mask(drawn), drawn)

    def fill(self, name, family, dtype):
        """With numbers of a family, drawn once."""
        count = min(self.sizes[name] // ours.BYTES[dtype], DRAWN)
        if (family, name, count) not in self.drawn:
            self.drawn[family, name, count] = self.library.draw(dtype, family, name, count)
        self.repeat(name, self.drawn[family, name, count], count * ours.BYTES[dtype])

    def repeat(self, name, data, drawn):
        """A buffer full of `drawn` bytes."""
        pointer, size = self.pointers[name], self.sizes[name]
        self.cuda.upload(pointer, data, drawn)
        for offset in range(drawn, size, drawn):
            self.cuda.copy(pointer + offset, pointer, min(drawn, size - offset))

    def prepared(self, shape):
        """What of the inputs depends on the shape goes into its buffers; what the oracle makes of them."""
        for name, values in small_inputs(shape).items():
            self.cuda.upload(self.pointers[name], values, ctypes.sizeof(values))
        return self.oracle(shape)

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

    def last(self, name, shape):
        """Bytes of a tensor that belong to what is checked."""
        checked = checked_part(shape)
        count, size = (ours.tensor_bytes(name, x) for x in (checked, shape))
        if not shape.rows_first or name not in ours.ROWS:
            return self.cuda.download(self.pointers[name] + size - count, count)
        sequence = size // shape.batch
        data = bytes(self.cuda.download(self.pointers[name] + size - sequence, sequence))
        rows = ours.axes_of(name, shape)[2]
        row, part = sequence // rows, count // rows
        found = b"".join(data[end - part:end] for end in range(row, sequence + 1, row))
        return ctypes.create_string_buffer(found, count)

    def oracle(self, shape):
        """What is right in the part that is checked, or None where that would take long."""
        checked = checked_part(shape)
        if checked.heads * checked.seqlen_q * checked.seqlen_k > MOST_CHECKED:
            return None
        names = [name for name in ours.tensors_of(shape) if name in INPUTS]
        inputs = {name: self.last(name, shape) for name in names}
        first = shape.batch * shape.heads - checked.heads
        inputs["dropout_stream"] = (ctypes.c_int64 * checked.heads)(*range(first, first + checked.heads))
        return ours.oracle(self.library, self.dtype, checked, inputs)

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


def random_mask(count):
    """Bytes of which a fifth, drawn at random, are zero, the others one."""
    return random.Random(1).randbytes(count).translate(bytes(byte >= 256 * (1 - tables.VISIBLE) for byte in range(256)))


def small_inputs(shape):
    """Slopes, lengths and block masks of a shape, as ctypes arrays by name."""
    rng, found = random.Random(2), {}
    if shape.has("alibi"):
        found["alibi_slopes"] = (ctypes.c_float * shape.heads)(*[2 ** (-8 * (head + 1) / shape.heads)
                                                                 for head in range(shape.heads)])
    if shape.has("seqused"):
        found["seqused_k"] = (ctypes.c_int32 * shape.batch)(*[rng.randint(shape.seqlen_k // 2, shape.seqlen_k)
                                                              for _ in range(shape.batch)])
    if shape.has("block_mask"):
        found["block_mask"] = random_blocks(rng, -(-shape.seqlen_k // tables.BLOCK), shape.blocks)
    return found


def random_blocks(rng, blocks, every):
    """Of each row of blocks that on the diagonal and others are visible, one in `every`."""
    mask = (ctypes.c_uint8 * (blocks * blocks))()
    for row in range(blocks):
        others = [column for column in range(blocks) if column != row]
        for column in [row, *rng.sample(others, max(1, blocks // every) - 1)]:
            mask[row * blocks + column] = 1
    return mask


def checked_part(shape):
    """The last sequence, and of it all heads where it is short, else those that share the last head of k: the oracle
    takes long over long ones."""
    heads_kv = shape.kv if shape.seqlen_k <= 128 else 1
    return shape._replace(batch=1, heads=heads_kv * shape.heads // shape.kv, heads_kv=heads_kv)


class Ours:
    """attest on one shape, in one direction; the same methods as peers.Backend. Results are poisoned first. Backward
    reads the o and lse of a forward run before it."""

    def __init__(self, bench, shape, direction):
        self.bench, self.shape, self.direction = bench, shape, direction
        self.plan = ours.Plan(bench.library, ours.CUDA, bench.dtype, shape, direction)
        self.workspace_bytes = self.plan.workspace_bytes()
        self.workspace = bench.cuda.allocate(self.workspace_bytes)
        bench.cuda.fill(self.workspace, 0xFF, self.workspace_bytes)
        for name in ours.RESULTS["forward"] + ours.RESULTS[direction]:
            bench.cuda.fill(bench.pointers[name], 0xFF, ours.tensor_bytes(name, shape))
        if direction == "backward":
            self.plan.run_forward(bench.pointers, self.workspace, self.workspace_bytes)
        self.call()

    def context(self):
        return contextlib.nullcontext()

    def call(self):
        self.plan.run(self.bench.pointers, self.workspace, self.workspace_bytes)

    def queue(self):
        return self.plan.queue(self.bench.pointers, self.workspace, self.workspace_bytes, CALLS)

    def results(self, _):
        return {name: self.bench.last(name, self.shape) for name in ours.RESULTS[self.direction]}

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

    def results(self, _):
        return {}

    def close(self):
        pass


def makers(bench, shape, direction):
    """By name, a function that makes what is to be timed, or refuses."""
    found = {"attest": lambda: Ours(bench, shape, direction)}
    if "empty" in bench.beside:
        found["empty"] = lambda: Empty(bench.library)
    elif bench.torch is not None:
        inputs = peers.tensors(bench.torch, bench.dtype, shape, bench.pointers)
        for name in (name for name in bench.beside if tables.takes_part(name, shape)):
            found[name] = lambda name=name: peers.Backend(bench.torch, name, shape, inputs, direction)
    return found


def contestants(bench, shape, direction, want):
    """(runs, running), by name: what a record says, errors or a refusal so far, and what is to be timed. `want`: the
    oracle's part; None: nothing is checked."""
    runs, running = {}, {}
    for name, make in makers(bench, shape, direction).items():
        try:
            contestant = make()
            results = contestant.results(checked_part(shape)) if want else {}
        except REFUSALS as sentence:
            runs[name] = {"refused": str(sentence)}
            continue
        errors = {tensor: bench.error(tensor, got, want) for tensor, got in results.items()}
        runs[name], running[name] = {"errors": errors}, contestant
    if "attest" in running:
        runs["attest"]["kernel"] = running["attest"].plan.kernel()
    return runs, running


def row(shape, direction, runs):
    return {**shape._asdict(), "direction": direction, "runs": runs}


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
    except REFUSALS as sentence:
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


def row_or_refusal(shape, direction, timed):
    """Whatever goes wrong, as where a kernel ends in a fault, is the row's own, and the others go on."""
    try:
        return timed(shape, direction)
    except Exception as error:  # pylint: disable=broad-except
        return row(shape, direction, {"attest": {"refused": f"{type(error).__name__}: {error}"}})


def add_rows(rows, bench, chosen, rounds, sample, progress):
    """Rows of a shape with and without features, whose buffers fit into memory together."""
    hold = functools.lru_cache(lambda: bench.hold([shape for shape, _ in chosen]))
    expected = functools.lru_cache(maxsize=1)(bench.prepared)  # of the shape's other direction, too

    def timed(shape, direction):
        hold()
        return time_row(bench, shape, direction, expected(shape), rounds, sample)

    for shape, direction in chosen:
        progress(shape)
        rows.append(row_or_refusal(shape, direction, timed))


def add_error_rows(rows, bench, shapes, progress):
    """Errors alone, on the other input families, of a few sequences of each shape."""
    few = [shape._replace(batch=min(FAMILY_BATCH, shape.batch)) for shape in shapes]
    bench.hold(few)
    for family in list(ours.FAMILIES)[1:]:
        bench.draw(family)
        for shape in few:
            progress(shape)
            want = bench.prepared(shape)
            for direction in ours.RESULTS:
                runs, running = contestants(bench, shape, direction, want)
                for contestant in running.values():
                    contestant.close()
                rows.append({"family": family, **row(shape, direction, runs)})


def measure(cuda, library, table, dtype, chosen, rounds, progress, beside=None):
    """Everything that report.py prints. `chosen`: pairs of a shape and a direction, those of a shape together.
    `progress` is told of each row as it begins, and of what there is by then. `beside`: less than the table has."""
    random.seed(1)
    bench = Bench(cuda, library, dtype, [], tables.BESIDE[table] if beside is None else beside)
    torch = bench.torch
    record = {"table": table, "dtype": dtype, "gpu": cuda.name(), "driver": cuda.driver_version(),
              "torch": torch.__version__ if torch else None,
              "cudnn": torch.backends.cudnn.version() if torch else None,
              "copy_bytes_per_s": bench.copy_bytes_per_s(), "matrix_flops_per_s": bench.matrix_flops_per_s(),
              "rows": []}

    def begins(shape):
        progress(shape, record)

    for _, alike in itertools.groupby(chosen, key=lambda pair: pair[0].plain()):
        add_rows(record["rows"], bench, list(alike), rounds, sample_queue if table == "small" else sample_call, begins)
    if table == "short":
        record["error_rows"] = []
        add_error_rows(record["error_rows"], bench, dict.fromkeys(shape for shape, _ in chosen), begins)
    return record
