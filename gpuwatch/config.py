"""TOML -> frozen settings. Every fault at once: file, key, what was expected, what is there, the nearest valid key.

Settings live beside what they set, as a `msgspec.Struct` in the leaf; this file knows none of them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from gpuwatch.errors import ConfigError

T = TypeVar("T")


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong in a settings file."""

    file: str
    key: str
    expected: str
    got: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; did you mean `{self.nearest}`?" if self.nearest else ""
        return f"{self.file}: {self.key}: expected {self.expected}, got {self.got}{hint}"


def read_toml(path: Path, *, option: str = "--config") -> dict[str, Any]:
    """The file's tables; `option` is what names it on the command line.

    Raises `ConfigError` for a missing, unreadable or malformed file.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", next_step=f"create it, or name another with {option}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", why=str(error), next_step="check its owner and mode") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML", why=str(error), next_step="mend the line it names") from None


def load(path: Path, shape: type[T]) -> T:
    """The whole file as one settings record. Raises `ConfigError` with every fault."""
    value, faults = convert(read_toml(path), shape, file=str(path))
    refuse(faults)
    assert value is not None
    return value


def refuse(faults: list[Fault]) -> None:
    """Raise if there are faults; the error's text lists all of them, a line each."""
    if not faults:
        return
    noun = "fault" if len(faults) == 1 else "faults"
    lines = "\n".join(f"  {fault}" for fault in faults)
    raise ConfigError(
        f"{len(faults)} {noun} in the settings:\n{lines}", next_step="mend them and start again; nothing was changed"
    )


def convert(raw: Mapping[str, Any], shape: type[T], *, file: str, at: str = "") -> tuple[T | None, list[Fault]]:
    """A table as `shape`, or `None` and every fault found in it. `at` is the table's dotted key."""
    faults: list[Fault] = []
    hints = get_type_hints(shape, include_extras=True)
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in raw.items():
        dotted = f"{at}{key}"
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.4)
            known = ", ".join(sorted(fields))
            faults.append(Fault(file, dotted, f"one of {known}", "an unknown key", f"{at}{near[0]}" if near else ""))
            continue
        got, inner = _convert_value(value, hints[fields[key].name], file=file, dotted=dotted)
        faults += inner
        values[fields[key].name] = got
    for key, field in fields.items():
        if field.required and key not in raw:
            faults.append(Fault(file, f"{at}{key}", _words(hints[field.name]), "nothing", ""))
    if faults:
        return None, faults
    try:
        return shape(**values), []
    except (ValueError, TypeError) as error:  # a rule over several keys, in __post_init__
        return None, [Fault(file, at.rstrip(".") or "(top)", str(error), "a combination that does not fit")]


def _convert_value(value: Any, wanted: Any, *, file: str, dotted: str) -> tuple[Any, list[Fault]]:
    struct = _struct_in(wanted)
    if struct is not None and isinstance(value, dict):
        return convert(value, struct, file=file, at=f"{dotted}.")
    item = _struct_in(get_args(wanted)[1]) if _is_table_of(wanted) else None
    if item is not None and isinstance(value, dict):
        tables: dict[str, Any] = {}
        faults: list[Fault] = []
        for name, table in value.items():
            got, inner = _convert_value(table, item, file=file, dotted=f"{dotted}.{name}")
            tables[name] = got
            faults += inner
        return tables, faults
    try:
        return msgspec.convert(value, wanted, strict=True, dec_hook=_from_text), []
    except (msgspec.ValidationError, ValueError) as error:
        why = str(error).split(" - at ")[0]
        return None, [Fault(file, dotted, _words(wanted), f"{value!r} ({why})", _nearest_choice(value, wanted))]


def _from_text(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"cannot be {kind.__name__}")


def _is_table_of(wanted: Any) -> bool:
    return getattr(wanted, "__origin__", None) is dict and len(get_args(wanted)) == 2


def _struct_in(wanted: Any) -> type | None:
    for choice in (wanted, *get_args(wanted)):
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct) and not _is_table_of(wanted):
            return choice
    return None


def _choices(wanted: Any) -> list[str]:
    if isinstance(wanted, type) and hasattr(wanted, "__members__"):
        return [str(member.value) for member in wanted]  # type: ignore[attr-defined]
    return [arg for arg in get_args(wanted) if isinstance(arg, str)]


def _nearest_choice(value: Any, wanted: Any) -> str:
    near = difflib.get_close_matches(str(value), _choices(wanted), n=1, cutoff=0.4)
    return near[0] if near else ""


def _words(wanted: Any) -> str:
    choices = _choices(wanted)
    if choices:
        return "one of " + ", ".join(choices)
    plain = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    if wanted in plain:
        return plain[wanted]
    meta = [arg for arg in get_args(wanted) if isinstance(arg, msgspec.Meta)]
    if meta:
        limits = [
            f"{word} {getattr(meta[0], name)}"
            for name, word in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
            if getattr(meta[0], name) is not None
        ]
        return f"{_words(get_args(wanted)[0])} {' and '.join(limits)}"
    if type(None) in get_args(wanted):
        return " or ".join(_words(arg) for arg in get_args(wanted) if arg is not type(None))
    if _struct_in(wanted) is not None or _is_table_of(wanted):
        return "a table"
    if getattr(wanted, "__origin__", None) in (tuple, list):
        return f"a list of {_words(get_args(wanted)[0])}"
    return str(getattr(wanted, "__name__", wanted))
