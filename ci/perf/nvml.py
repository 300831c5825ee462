"""What may spoil a timing: clocks held down, another process on the GPU. Observed through NVML, never set."""

import ctypes
from ctypes import byref, c_uint, c_uint64, c_void_p

SM_CLOCK = 1        # NVML_CLOCK_SM
# nvmlClocksEventReasons: what holds clocks below what was asked for. Power's own cap is how such GPUs work.
HELD_DOWN = {0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
             0x80: "power brake"}


class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_uint64), ("instance", c_uint), ("compute_instance", c_uint)]


class Watch:
    """Nothing is known where there is no NVML: `why` says so, and the report repeats it."""

    def __init__(self):
        self.seen, self.clocks, self.most_processes, self.why = set(), [], 0, None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml, self.why = None, "there is no libnvidia-ml.so.1"
            return
        self.device = c_void_p()
        if self.nvml.nvmlInit_v2() != 0 or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(self.device)) != 0:
            self.nvml, self.why = None, "NVML shows no GPU"

    def look(self):
        if self.nvml is None:
            return
        reasons, clock = c_uint64(), c_uint()
        if self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.device, byref(reasons)) == 0:
            self.seen |= {text for bit, text in HELD_DOWN.items() if reasons.value & bit}
        if self.nvml.nvmlDeviceGetClockInfo(self.device, SM_CLOCK, byref(clock)) == 0:
            self.clocks.append(clock.value)
        count, processes = c_uint(64), (Process * 64)()
        if self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.device, byref(count), processes) == 0:
            self.most_processes = max(self.most_processes, count.value)

    def spoiled(self):
        """Sentences; none: nothing was seen."""
        found = [f"clocks were held down: {text}" for text in sorted(self.seen)]
        if self.most_processes > 1:
            found.append(f"{self.most_processes} processes were on the GPU")
        return found
