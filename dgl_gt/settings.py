"""Settings: fields of frozen dataclasses, each with its type, what it may be, its default and a line of help."""

from __future__ import annotations

import textwrap
from dataclasses import Field, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

import numpy as np
from msgspec import Meta

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.yaml_file import typed


def between(least, most) -> Meta:
    """Limits far beyond any use, so that a value outside of them is a mistake."""
    kind, style = ("number", "g") if isinstance(most, float) else ("whole number", ",")
    return Meta(ge=least, le=most, description=f"a {kind} from {least:{style}} to {most:{style}}")


def one_of(names: tuple[str, ...]) -> Meta:
    """One of some names."""
    text = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return Meta(pattern=rf"\A({'|'.join(names)})\Z", description=text)


Count = Annotated[int, between(0, 10**9)]
Share = Annotated[float, Meta(ge=0, lt=1, description="at least 0 and below 1")]
Flag = Annotated[bool, Meta(description="true or false")]


def setting(default, help_text: str, option: str | None = None) -> Any:
    """A field of settings; ``option`` is its name on the command line, where that is not the field's own."""
    return field(default=default, metadata={"help": help_text, "option": option})


def with_default(kind: type, name: str, default) -> Any:
    """A setting of a base class with another default."""
    return field(default=default, metadata={each.name: each.metadata for each in fields(kind)}[name])


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of the fields of settings, with what they allow."""
    return get_type_hints(kind, include_extras=True)


class Settings:
    """Base class of frozen dataclasses whose fields are settings, or sections of settings."""

    def __post_init__(self):
        """Raise :class:`InputError` that names the first setting that is not what it may be, and says what is allowed.

        Numbers of numpy become Python's.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if not each.metadata:  # a section has checked its own
                if not isinstance(value, types_of(type(self))[each.name]):
                    raise InputError(
                        f"{each.name} is {value!r}; it must be a {types_of(type(self))[each.name].__name__}"
                    )
            else:
                value = value.item() if isinstance(value, (np.number, np.bool_)) else value
                object.__setattr__(self, each.name, typed(value, types_of(type(self))[each.name], option_name(each)))


def option_name(each: Field) -> str:
    """The name of a setting where it stands without its section."""
    return each.metadata["option"] or each.name


def described(kind):
    """Complete the docstring of settings from the texts of their options, and show plain types in the signature."""
    kind.__init__.__annotations__ = get_type_hints(kind)
    return describing(kind)(kind)


def describing(config: type, *left_out: str):
    """Complete a class's docstring, before "Raises", with the settings of a config that it takes as arguments."""
    lines = []
    for each in fields(config):
        hint = types_of(config)[each.name]
        if is_dataclass(hint):
            lines += [f"{each.name} : {hint.__name__}"]
        elif each.name not in left_out:
            lines.append(f"{each.name} : {hint.__origin__.__name__}, default {each.default!r}")
            text = _help_of(each, hint)
            lines.append(
                textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
            )
    parameters = textwrap.indent("\n".join(lines), "    ")

    def complete(kind):
        if not kind.__doc__:  # python -OO
            return kind
        head = "" if "    Parameters\n" in kind.__doc__ else "\n    Parameters\n    ----------\n"
        kind.__doc__ = kind.__doc__.replace("\n    Raises\n", f"{head}{parameters}\n\n    Raises\n")
        return kind

    return complete


def _help_of(each: Field, hint) -> str:
    text, allowed = each.metadata["help"], hint.__metadata__[0].description
    text = f"{text[:1].upper()}{text[1:]}."
    is_said = all(word in text for word in allowed.replace(" or ", ", ").split(", "))
    return text if is_said else f"{text} Allowed: {allowed}."
