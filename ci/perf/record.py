"""Times of two bundles as `--json` wrote them (times.py, `measured`): read, checked to the last pair, and what the log
keeps of them."""

import json
import statistics

import ours
import times
from history import MOST_MS, is_text

CONFIGURATIONS = {times.name_of(shape, direction) for shape in times.SHAPES for direction in ours.RESULTS}


class NoRecord(Exception):
    """The sentence says why a file is no record of times."""


def in_range(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST_MS


FIELDS = {
    "gpu": (is_text, "the name of a GPU"),
    "driver": (lambda value: value is None or is_text(value), "a driver's version or null"),
    "seconds": (in_range, f"a number above 0 and at most {MOST_MS:g}"),
    "refused": (lambda value: isinstance(value, dict), "an object"),
    "spoiled": (lambda value: isinstance(value, list) and all(map(is_text, value)), "a list of sentences"),
    "unwatched": (lambda value: value is None or is_text(value), "a sentence or null"),
    "samples_ms": (lambda value: isinstance(value, dict) and value != {}, "an object of configurations"),
}


def wrong(field, value, wanted):
    return NoRecord(f"{field} is {value!r:.60}, not {wanted}")


def check(record):
    if not isinstance(record, dict):
        raise wrong("the record", record, "an object that --json of times wrote")
    for field, (is_right, wanted) in FIELDS.items():
        if field not in record:
            raise NoRecord(f"there is no {field}, so it is not what --json of times writes")
        if not is_right(record[field]):
            raise wrong(field, record[field], wanted)
    samples = record["samples_ms"]
    odd = sorted(CONFIGURATIONS ^ {*samples, *record["refused"]})
    if odd:
        what = "misses the configuration" if odd[0] in CONFIGURATIONS else "has what is no configuration that is timed:"
        raise NoRecord(f"samples_ms {what} {odd[0]!r:.60}")
    for name, pairs in samples.items():
        if not isinstance(pairs, list):
            raise wrong(f"samples_ms, {name},", pairs, "a list of pairs")
        for number, pair in enumerate(pairs, 1):
            if not (isinstance(pair, list) and len(pair) == 2 and all(map(in_range, pair))):
                raise wrong(f"samples_ms, {name}, pair {number}", pair, f"two times above 0 and at most {MOST_MS:g} ms")


def read(path):
    try:
        with open(path) as file:
            record = json.load(file)
    except OSError as error:
        raise NoRecord(error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise NoRecord(f"not JSON: {error}") from None
    check(record)
    return record


def figures(record):
    """Medians of head, in ms: {kernel: {"times GPU CONFIGURATION": value}}."""
    found = {}
    for name, pairs in record["samples_ms"].items():
        kernel, configuration = name.split(" ", 1)
        median = statistics.median(head for _, head in pairs)
        found.setdefault(kernel, {})[f"times {record['gpu']} {configuration}"] = float(f"{median:.6g}")
    return found
