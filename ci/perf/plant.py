"""plant.py REGRESSIONS NAME OUTPUT SOURCES...: writes the source of one regression.

An entry of the list (regressions.txt): its name; what is slower; the source that is compiled; the problems of the
simulated GPU, or workloads of the host, that show it (none: all); `narrow`, where those have plain scores of 64
features in bf16, for which alone the source is compiled then: all that a long kernel takes would be ten times as
much; each text that is replaced, found exactly once in it, and what stands there instead, lines beginning with |; the
kernel, the count and, where more than one problem would do, the problem that must be found worse (in slowdowns.txt:
the direction whose times must be). In a source of kernels the headers of kernels/ stand in the place where they are
included first."""

import re
import sys


def entries(path):
    """{name: {field: text}}."""
    found, entry, field = {}, None, None
    with open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line.startswith("regression "):
                entry = found.setdefault(line.split()[1], {"changes": [], "worse": [], "problems": []})
            elif match := re.match(r"(what|source) +(.+)", line):
                entry[match[1]] = match[2]
            elif match := re.match(r"problems +(.+)", line):
                entry["problems"] += match[1].split()
            elif match := re.match(r"worse +(\S+) +(\S+)(?: +(\S+))?$", line):
                entry["worse"].append(match.groups())
            elif match := re.match(r"slower +(\S+)", line):
                entry["slower"] = match[1]
            elif line == "narrow":
                entry["narrow"] = True
            elif line == "from":
                entry["changes"].append(([], []))
                field = entry["changes"][-1][0]
            elif line == "to":
                field = entry["changes"][-1][1]
            elif line.startswith("|"):
                field.append(line[1:])
            elif line and not line.startswith("#"):
                raise SystemExit(f"{path}:{number}: not understood: {line}")
    return found


def expanded(code, headers, seen):
    def replace(match):
        name = match[1]
        if name not in headers:
            return match[0]
        if name in seen:
            return ""
        seen.add(name)
        return expanded(headers[name], headers, seen)
    return re.sub(r'^#include "(kernels/[\w/]+\.h)"\n', replace, code, flags=re.M)


def narrowed(name, code):
    code, count = re.subn(r"\b(launch\w*<T, )(?:32|128|256)>", r"\g<1>64>", code.replace("<f16>(*p", "<bf16>(*p"))
    if count == 0:
        raise SystemExit(f"{name}: its launcher is not understood")
    return code.replace("if constexpr (DIM <= 128) {", "if constexpr (DIM < 0) {")


def planted(entry, name, sources):
    code = sources[entry["source"]]
    if entry["source"].endswith(".cu"):
        code = expanded(code, {path: text for path, text in sources.items() if path.endswith(".h")}, set())
    for before, after in entry["changes"]:
        before = "\n".join(before)
        if code.count(before) != 1:
            raise SystemExit(f"{name}: found {code.count(before)} times in {entry['source']}, not once:\n{before}")
        code = code.replace(before, "\n".join(after))
    return narrowed(name, code) if "narrow" in entry else code


def main():
    listing, name, output, *paths = sys.argv[1:]
    sources = {}
    for path in paths:
        with open(path) as file:
            sources[path] = file.read()
    entry = entries(listing).get(name) or sys.exit(f"{listing} has no {name}")
    with open(output, "w") as file:
        file.write(planted(entry, name, sources))


if __name__ == "__main__":
    main()
