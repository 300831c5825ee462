"""The driver's C interface, as far as timing needs it: memory, copies, events. PyTorch and attest share its context."""

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p

L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE


class NoGpu(Exception):
    """There is no GPU to time on; the sentence says what is missing."""


class Cuda:
    """The first GPU. Everything is queued on the default stream; pointers are integers."""

    def __init__(self):
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise NoGpu("there is no libcuda.so.1") from None
        count = c_int(0)
        if self.driver.cuInit(0) != 0 or self.driver.cuDeviceGetCount(byref(count)) != 0 or count.value == 0:
            raise NoGpu("the driver shows no GPU")
        self.device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(self.device), 0)
        self._call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self._call("cuCtxSetCurrent", context)
        self.start, self.end = self._event(), self._event()

    def _call(self, function, *arguments):
        error = getattr(self.driver, function)(*arguments)
        if error != 0:
            text = c_char_p(b"unknown error")
            self.driver.cuGetErrorString(error, byref(text))
            raise RuntimeError(f"{function}: {text.value.decode()}")

    def _event(self):
        event = c_void_p()
        self._call("cuEventCreate", byref(event), 0)
        return event

    def name(self):
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode()

    def uuid(self):
        """As NVML spells it."""
        value = ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid", value, self.device)
        digits = value.raw.hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def driver_version(self):
        """What CUDA this driver knows, as "13.0"."""
        value = c_int()
        self._call("cuDriverGetVersion", byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def l2_bytes(self):
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), L2_CACHE_SIZE, self.device)
        return value.value

    def allocate(self, count):
        pointer = c_uint64()
        self._call("cuMemAlloc_v2", byref(pointer), c_size_t(max(count, 256)))
        return pointer.value

    def free(self, pointer):
        self._call("cuMemFree_v2", c_uint64(pointer))

    def fill(self, pointer, byte, count):
        self._call("cuMemsetD8Async", c_uint64(pointer), byte, c_size_t(count), None)

    def copy(self, target, source, count):
        self._call("cuMemcpyDtoDAsync_v2", c_uint64(target), c_uint64(source), c_size_t(count), None)

    def upload(self, target, source, count):
        self._call("cuMemcpyHtoD_v2", c_uint64(target), source, c_size_t(count))

    def download(self, source, count):
        """`count` bytes as a ctypes buffer, once everything queued before is done."""
        buffer = ctypes.create_string_buffer(count)
        self._call("cuMemcpyDtoH_v2", buffer, c_uint64(source), c_size_t(count))
        return buffer

    def synchronize(self):
        self._call("cuCtxSynchronize")

    def time_ms(self, call):
        """Milliseconds on the GPU of what `call` queues, whatever was queued before."""
        self._call("cuEventRecord", self.start, None)
        call()
        self._call("cuEventRecord", self.end, None)
        self._call("cuEventSynchronize", self.end)
        elapsed = c_float()
        self._call("cuEventElapsedTime", byref(elapsed), self.start, self.end)
        return elapsed.value
