"""Files of lines: read to the last byte, and several of them replaced together or not at all."""

import os


class Malformed(Exception):
    """The sentence says which file, or which line of it, cannot be read, and why."""


def lines(path):
    """[(where, line)]: a file that was cut off or converted is refused, so that no half of a line is a line."""
    try:
        with open(path, "rb") as file:
            *whole, rest = file.read().split(b"\n")
    except OSError as error:
        raise Malformed(f"{path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(whole + [rest] * (rest != b""), 1):
        where = f"{path}:{number}"
        try:
            found.append((where, line.decode()))
        except UnicodeDecodeError:
            raise Malformed(f"{where}: not UTF-8") from None
        if line.endswith(b"\r"):
            raise Malformed(f"{where}: the line ends with CR LF, not LF")
    if rest:
        raise Malformed(f"{path}:{len(found)}: the last line has no end: is something cut off?")
    return found


def text_of(path):
    """None where there is no file."""
    if not os.path.lexists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_beside(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)


def move(path, text):
    if text is None:
        os.remove(path)
    else:
        os.replace(path + ".new", path)


def put_back(before):
    for path, text in before.items():
        try:
            if text_of(path) != text:
                if text is not None:
                    write_beside(path, text)
                move(path, text)
            if os.path.isfile(path + ".new"):
                os.remove(path + ".new")
        except OSError:
            continue  # the error that is said is the first one


def replace(texts):
    """{path: text, or None to remove the file}. All is written beside what is there before anything is renamed; after
    an OSError every file is as it was."""
    before = {path: text_of(path) for path in texts}
    try:
        for path, text in texts.items():
            if text is not None:
                write_beside(path, text)
        for path, text in texts.items():
            move(path, text)
    except OSError:
        put_back(before)
        raise
