"""Builds a complete libnvidia-ml.so.1 for tests from NVIDIA's own header (wheel nvidia-nvml-dev) and answers.c.

Every function of the header exists: those that answers.c does not write answer NOT_SUPPORTED. Because answers.c is
compiled against the real header, a wrong signature does not compile. The header stays in its wheel.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
BUILDS = HERE.parents[1] / ".build" / "nvml"
SONAME = "libnvidia-ml.so.1"
DELAYS = HERE / "delays_us.csv"

_PROTOTYPE = re.compile(
    r"\b(?P<returns>nvmlReturn_t|const\s+char\s*\*)\s+DECLDIR\s+(?P<name>nvml\w+)\s*\((?P<arguments>[^;{}]*)\)\s*;"
    r"|\bconst\s+DECLDIR\s+char\s*\*\s*(?P<text_name>nvml\w+)\s*\((?P<text_arguments>[^;{}]*)\)\s*;"
)
_WRITTEN = re.compile(r"^(?:nvmlReturn_t|const char \*)\s*(nvml\w+)\(|^ONE_NUMBER\((nvml\w+),", re.MULTILINE)


def header() -> Path:
    """nvml.h of the installed wheel."""
    for file in importlib.metadata.files("nvidia-nvml-dev") or ():
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise FileNotFoundError("the wheel nvidia-nvml-dev holds no nvml.h")


def prototypes(text: str) -> dict[str, str]:
    """Name -> argument list of every function that returns a code."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    return {
        found["name"]: " ".join(found["arguments"].split())
        for found in _PROTOTYPE.finditer(plain)
        if found["name"] and found["returns"] == "nvmlReturn_t"
    }


def build(without: tuple[str, ...] = ()) -> Path:
    """The folder with the library, for LD_LIBRARY_PATH. `without`: functions that an older driver does not have."""
    source, include = (HERE / "answers.c").read_text(), header()
    key = hashlib.sha256("\n".join((source, str(include), Path(__file__).read_text(), *without)).encode()).hexdigest()
    folder = BUILDS / key[:16]
    if (folder / SONAME).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    known = prototypes(include.read_text())
    written = {name for pair in _WRITTEN.findall(source) for name in pair if name}
    stubs = [
        f"nvmlReturn_t {name}({arguments})"
        " { nvmlReturn_t code = enter(__func__, -1); return code ? code : NVML_ERROR_NOT_SUPPORTED; }"
        for name, arguments in sorted(known.items())
        if name not in written
    ]
    whole = "\n".join(["#define NVML_NO_UNVERSIONED_FUNC_DEFS 1", "#include <nvml.h>", source, *stubs])
    (folder / "library.c").write_text(whole)
    hidden = folder / "hidden.map"
    hidden.write_text(
        "{ local: " + " ".join(f"{name};" for name in without) + " };\n" if without else "{ global: *; };\n"
    )
    made = folder / f"{SONAME}.{os.getpid()}"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wno-deprecated-declarations", "-Wno-unused-parameter"]
    command += [f"-I{include.parent}", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={hidden}"]
    subprocess.run([*command, "-o", str(made), str(folder / "library.c")], check=True)
    made.rename(folder / SONAME)
    return folder


def missing(folder: Path) -> set[str]:
    """Functions of the header that the built library does not export."""
    listed = subprocess.run(["nm", "-D", "--defined-only", folder / SONAME], check=True, capture_output=True, text=True)
    return set(prototypes(header().read_text())) - {
        line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()
    }
