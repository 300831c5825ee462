"""What may spoil a timing: clocks held down, another process on the GPU. Observed through NVML, never set."""

import ctypes
from ctypes import byref, c_uint, c_uint64, c_void_p

SM_CLOCK = 1        # NVML_CLOCK_SM
# nvmlClocksEventReasons: what holds clocks below what was asked for.
HELD_DOWN = {0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
             0x80: "power brake"}
POWER_CAP = 0x04    # how such GPUs work under load: a fault only where it takes much of the clock
STEADY = 0.97       # of the highest clock: what falls by 3 % moves times by as much as the gate has to find
INSUFFICIENT_SIZE = 7


class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_uint64), ("instance", c_uint), ("compute_instance", c_uint)]


class Watch:
    """Of the GPU with this uuid. Nothing is known where NVML does not show it: `why` says so, and the report repeats
    it."""

    def __init__(self, uuid):
        self.seen, self.capped, self.clocks, self.most_processes, self.why = set(), False, [], 0, None
        self.device = c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml, self.why = None, "there is no libnvidia-ml.so.1"
            return
        if self.nvml.nvmlInit_v2() != 0 or self.nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(self.device)) != 0:
            self.nvml, self.why = None, f"NVML shows no {uuid}"

    def driver_version(self):
        text = ctypes.create_string_buffer(81)
        if self.nvml is None or self.nvml.nvmlSystemGetDriverVersion(text, len(text)) != 0:
            return None
        return text.value.decode()

    def look(self):
        if self.nvml is None:
            return
        reasons, clock = c_uint64(), c_uint()
        count, processes = c_uint(64), (Process * 64)()
        errors = {"reasons": self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.device, byref(reasons)),
                  "clocks": self.nvml.nvmlDeviceGetClockInfo(self.device, SM_CLOCK, byref(clock)),
                  "processes": self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.device, byref(count), processes)}
        if errors["processes"] == INSUFFICIENT_SIZE:
            errors["processes"] = 0  # `count` says how many there are
        elif errors["processes"] == 0 and count.value == 0:
            self.why = "NVML shows no processes, not even this one"
        for what, error in errors.items():
            if error != 0:
                self.why = f"NVML does not say what {what} it sees (error {error})"
        if errors["reasons"] == 0:
            self.seen |= {text for bit, text in HELD_DOWN.items() if reasons.value & bit}
            self.capped = self.capped or bool(reasons.value & POWER_CAP)
        if errors["clocks"] == 0:
            self.clocks.append(clock.value)
        if errors["processes"] == 0:
            self.most_processes = max(self.most_processes, count.value)

    def highest_clock(self):
        clock = c_uint()
        if self.nvml is None or self.nvml.nvmlDeviceGetMaxClockInfo(self.device, SM_CLOCK, byref(clock)) != 0:
            return None
        return clock.value

    def spoiled(self):
        """Sentences; none: nothing was seen."""
        found = [f"clocks were held down: {text}" for text in sorted(self.seen)]
        if self.most_processes > 1:
            found.append(f"{self.most_processes} processes were on the GPU")
        low, high = min(self.clocks, default=0), max(self.clocks, default=0)
        highest = self.highest_clock()
        if low < STEADY * high:
            found.append(f"the SM clock fell from {high} to {low} MHz")
        elif self.capped and highest is not None and low < STEADY * highest:
            found.append(f"the power cap held the SM clock at {low} of {highest} MHz")
        return found
