"""Reader of declaration files, TOML and XML. Reads at most `FILE_BYTES_MAX` of each, and makes nothing that runs."""

from __future__ import annotations

from pathlib import Path

from halfmoon.events.declarations.declaration import Declarations
from halfmoon.events.declarations.tomlfile import DeclarationFiles, read_toml
from halfmoon.events.declarations.xmlfile import read_xml
from halfmoon.events.errors import DeclarationRefused

FILE_BYTES_MAX = 1_048_576
FILES_MAX = 1_000


def read(*paths: str | Path) -> DeclarationFiles:
    """Return the declarations of all files, and the table of classes of their TOML files.

    Raises DeclarationRefused, also for a file that is missing, too long, or neither ``.toml`` nor ``.xml``; for an id declared in
    two of them, and for a name with two different paths.
    """
    if not paths or len(paths) > FILES_MAX:
        raise DeclarationRefused("declarations", f"{len(paths)} files were named", f"name 1 to {FILES_MAX}")
    declarations, classes = Declarations(), dict[str, str]()
    for path in map(Path, paths):
        file = _read_one(path)
        declarations += file.declarations
        for name, target in file.classes.items():
            if classes.setdefault(name, target) != target:
                what = f"{name!r:.80} stands for {target} here and for {classes[name]} in another file"
                raise DeclarationRefused(f"{path}: classes", what, "keep one of the two")
    return DeclarationFiles(declarations, classes)


def _read_one(path: Path) -> DeclarationFiles:
    name = str(path)
    if path.suffix not in (".toml", ".xml"):
        raise DeclarationRefused(name, "neither .toml nor .xml", "name it by what it holds")
    try:
        if not path.is_file():
            raise FileNotFoundError("no such file")
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise DeclarationRefused(name, f"cannot be read: {exc.strerror or exc}", "mend the path or its rights") from exc
    if len(text) > FILE_BYTES_MAX:
        raise DeclarationRefused(name, f"longer than {FILE_BYTES_MAX} bytes", "split the file")
    return read_toml(text, name) if path.suffix == ".toml" else DeclarationFiles(read_xml(text, name), {})
