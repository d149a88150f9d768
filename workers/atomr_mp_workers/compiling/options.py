"""The options of the compiler and of the linker that callers may give. Pure.

Only what is listed is allowed. No option here names a file, a folder, a number of threads or anything else outside the
source. Each has one canonical form, which is what the compiler gets and what the cache's key has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from atomr_mp import errors

MAX_OPTIONS: Final = 256
MAX_OPTION_CHARS: Final = 4096


class OptionForm(NamedTuple):
    """An option: its canonical name, and its values."""

    name: str
    value: re.Pattern[str] | None = None
    """What its value matches; None if it takes none."""
    values: str = ""
    """Its values in words."""


class AllowList:
    """The options of one tool.

    Args:
        tool: The tool's name, for errors.
        forms: Options by each of their names, without dashes in front.
        others: Names of options that are refused, with the reason.
    """

    def __init__(self, tool: str, forms: Mapping[str, OptionForm], others: Mapping[str, str]) -> None:
        self._tool: Final = tool
        self._forms: Final = forms
        self._others: Final = others

    @property
    def names(self) -> list[str]:
        """Canonical names, sorted."""
        return sorted({form.name for form in self._forms.values()})

    def canonical(self, given: Iterable[str]) -> tuple[str, ...]:
        """Return options in their canonical form and in their order.

        Raises:
            InvalidRequest: A value is wrong, or there are too many options.
            Unsupported: An option is not allowed.
        """
        options = tuple(given)
        if len(options) > MAX_OPTIONS:
            raise errors.InvalidRequest(f"nothing was compiled: {len(options)} options are more than {MAX_OPTIONS}")
        return tuple(map(self._one, options))

    def _one(self, option: str) -> str:
        name, equals, value = option.lstrip("-").partition("=")
        if not option.startswith("-") or len(option) > MAX_OPTION_CHARS:
            raise errors.InvalidRequest(
                f"nothing was compiled: {option!r:.100} is not an option of the form '--name' or '--name=value', of at "
                f"most {MAX_OPTION_CHARS} characters"
            )
        form = self._forms.get(name)
        if form is None and (joined := _joined(option)) is not None:  # -DNAME=VALUE
            form, equals, value = self._forms.get(joined[0]), "=", joined[1]
        if form is None:
            why = self._others.get(name) or f"it is not one of those that may be given: {', '.join(self.names)}"
            raise errors.Unsupported(f"nothing was compiled: the option {option!r:.100} of {self._tool}: {why}")
        if form.value is None:
            if equals:
                raise errors.InvalidRequest(f"nothing was compiled: the option {option!r:.100} takes no value")
            return form.name
        if not equals or not form.value.fullmatch(value):
            raise errors.InvalidRequest(
                f"nothing was compiled: the option {option!r:.100} takes {form.values}, as {form.name}=VALUE"
            )
        return f"{form.name}={value}"


def _joined(option: str) -> tuple[str, str] | None:
    """Return name and value of an option such as -DNAME, which has no sign between them."""
    return (option[1], option[2:]) if option[:2] in {"-D", "-U", "-O"} else None


_BOOL: Final = (re.compile(r"true|false"), "true or false")
_NUMBERS: Final = (re.compile(r"[0-9]{1,6}+(?:,[0-9]{1,6}+){0,63}+"), "numbers of messages, separated by commas")
_REGISTERS: Final = (re.compile(r"[0-9]{1,3}"), "a number of registers")
_PTXAS: Final = (
    re.compile(
        r"-O[0-3]|-v|--verbose|--warn-on-spills|--warn-on-local-memory-usage|-dlcm=c[agvs]|-dscm=(?:wb|cg|cs|wt)"
    ),
    "one of -O0 to -O3, -v, --warn-on-spills, --warn-on-local-memory-usage, -dlcm=ca|cg|cv|cs, -dscm=wb|cg|cs|wt",
)
_LEVEL: Final = (re.compile(r"[0-3]"), "a level from 0 to 3")
_SYMBOLS: Final = (re.compile(r"[A-Za-z0-9_$.]{1,512}(?:,[A-Za-z0-9_$.]{1,512}){0,63}"), "lowered names, with commas")
_MACRO: Final = (
    re.compile(r"[A-Za-z_]\w{0,255}(?:\([\w, .]{0,512}\))?(?:=[^\x00-\x1f\x7f]*+)?"),
    "NAME or NAME=TEXT on one line",
)
_IDENTIFIER: Final = (re.compile(r"[A-Za-z_]\w{0,255}"), "a name")

_SENT: Final = "files are not read; send the text as one of `headers`"
_WRITES: Final = "it would write a file"
_ASKED: Final = "name it as `arch`"

COMPILING: Final = AllowList(
    "NVRTC",
    {
        **dict.fromkeys(("G", "device-debug"), OptionForm("--device-debug")),
        **dict.fromkeys(("lineinfo", "generate-line-info"), OptionForm("--generate-line-info")),
        **dict.fromkeys(("rdc", "relocatable-device-code"), OptionForm("--relocatable-device-code", *_BOOL)),
        **dict.fromkeys(("ewp", "extensible-whole-program"), OptionForm("--extensible-whole-program")),
        **dict.fromkeys(("Xptxas", "ptxas-options"), OptionForm("--ptxas-options", *_PTXAS)),
        "maxrregcount": OptionForm("--maxrregcount", *_REGISTERS),
        "ftz": OptionForm("--ftz", *_BOOL),
        "prec-sqrt": OptionForm("--prec-sqrt", *_BOOL),
        "prec-div": OptionForm("--prec-div", *_BOOL),
        "fmad": OptionForm("--fmad", *_BOOL),
        "use_fast_math": OptionForm("--use_fast_math"),
        "extra-device-vectorization": OptionForm("--extra-device-vectorization"),
        **dict.fromkeys(("D", "define-macro"), OptionForm("--define-macro", *_MACRO)),
        **dict.fromkeys(("U", "undefine-macro"), OptionForm("--undefine-macro", *_IDENTIFIER)),
        "std": OptionForm("--std", re.compile(r"c\+\+(?:11|14|17|20)"), "c++11, c++14, c++17 or c++20"),
        "builtin-move-forward": OptionForm("--builtin-move-forward", *_BOOL),
        "builtin-initializer-list": OptionForm("--builtin-initializer-list", *_BOOL),
        **dict.fromkeys(("w", "disable-warnings"), OptionForm("--disable-warnings")),
        "restrict": OptionForm("--restrict"),
        **dict.fromkeys(
            ("default-device", "device-as-default-execution-space"), OptionForm("--device-as-default-execution-space")
        ),
        "device-int128": OptionForm("--device-int128"),
        **dict.fromkeys(("err-no", "display-error-number"), OptionForm("--display-error-number")),
        **dict.fromkeys(("no-err-no", "no-display-error-number"), OptionForm("--no-display-error-number")),
        "diag-error": OptionForm("--diag-error", *_NUMBERS),
        "diag-suppress": OptionForm("--diag-suppress", *_NUMBERS),
        "diag-warn": OptionForm("--diag-warn", *_NUMBERS),
    },
    {
        **dict.fromkeys(("I", "include-path", "include", "pre-include"), _SENT),
        **dict.fromkeys(("pch", "create-pch", "use-pch", "pch-dir"), _WRITES),
        **dict.fromkeys(("time", "fdevice-time-trace", "device-time-trace"), _WRITES),
        **dict.fromkeys(("arch", "gpu-architecture"), _ASKED),
        **dict.fromkeys(
            ("dlto", "gen-opt-lto"), "it is set where the source is linked with other codes, which `link` names"
        ),
    },
)
"""NVRTC's."""

LINKING: Final = AllowList(
    "nvJitLink",
    {
        "g": OptionForm("-g"),
        "lineinfo": OptionForm("-lineinfo"),
        "O": OptionForm("-O", *_LEVEL),
        "maxrregcount": OptionForm("-maxrregcount", *_REGISTERS),
        "ftz": OptionForm("-ftz", *_BOOL),
        "prec-div": OptionForm("-prec-div", *_BOOL),
        "prec-sqrt": OptionForm("-prec-sqrt", *_BOOL),
        "fma": OptionForm("-fma", *_BOOL),
        "kernels-used": OptionForm("-kernels-used", *_SYMBOLS),
        "variables-used": OptionForm("-variables-used", *_SYMBOLS),
        "optimize-unused-variables": OptionForm("-optimize-unused-variables"),
        "Xptxas": OptionForm("-Xptxas", *_PTXAS),
    },
    {"arch": _ASKED, "lto": "it is set if an input is LTO-IR", "ptx": "a link makes a CUBIN"},
)
"""nvJitLink's."""
