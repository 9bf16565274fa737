"""Dataclasses that cost next to nothing at import; the names of the standard library's `dataclasses`.

That writes and compiles six methods of each class where it stands, which for the 150 classes of one prediction takes
as long as to import NumPy. Here the methods that are alike for all classes are not compiled, and `__init__` is when it
is first looked up. What a class does, and what is found of its fields, is the same, but that an instance of a frozen
class takes no attribute at all.
"""

from dataclasses import MISSING as MISSING
from dataclasses import asdict as asdict
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import is_dataclass as is_dataclass
from dataclasses import replace as replace
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from functools import cached_property as cached_property
else:
    import dataclasses
    from reprlib import recursive_repr

    PARAMS = "__dataclass_params__"

    class cached_property:
        """A value that is computed when it is first asked for, and then stands in the instance; without a lock, as in
        Python 3.12. Python 3.11's holds one for all instances while it computes: a process that is forked meanwhile
        waits for ever. Two threads may compute a value twice, and get equal ones."""

        def __init__(self, compute):
            self.compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.compute(instance)
            return value

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False):
        """As `dataclasses.dataclass`, with those of its settings that the package needs."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq, repr=repr, kw_only=kw_only)
        made = {"__init__": _Init(cls, frozen)}
        if repr:
            made["__repr__"] = _repr
        if frozen:
            made |= {"__setattr__": _refuse, "__delattr__": _refuse}
        cls.__doc__ = cls.__doc__ or cls.__name__  # else it would be worked out of the signature
        bases = [vars(base)[PARAMS] for base in cls.__mro__[1:] if PARAMS in vars(base)]
        were_frozen = [base.frozen for base in bases]
        for base in bases:  # it would have methods compiled that refuse changes
            base.frozen = False
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        for base, was_frozen in zip(
            [*bases, vars(cls)[PARAMS]], [*were_frozen, frozen], strict=True
        ):
            base.frozen = was_frozen
        if eq:
            compared = [f for f in fields(cls) if f.compare]
            values, hashed = (
                _values(compared),
                _values([f for f in compared if f.hash is not False]),
            )
            made["__eq__"] = lambda a, b: (
                values(a) == values(b) if a.__class__ is b.__class__ else NotImplemented
            )
            made["__hash__"] = (lambda self: hash(hashed(self))) if frozen else None
        for name, method in made.items():
            if name not in vars(cls) or (name == "__hash__" and cls.__hash__ is None):
                setattr(cls, name, method)
        return cls

    class _Init:
        """Stands in the place of a class's `__init__` until that is looked up."""

        def __init__(self, cls, frozen):
            self.cls, self.frozen = cls, frozen

        def __get__(self, instance, owner):
            self.cls.__init__ = init = _compiled(self.cls, self.frozen)
            return init.__get__(instance, owner)

    def _compiled(cls, frozen):
        """The `__init__` of a class: values of its fields as arguments, then its `__post_init__`."""
        parameters = [f for f in fields(cls) if f.init]
        defaults = {
            f.name: f.default
            for f in parameters
            if f.default is not MISSING or f.default_factory is not MISSING
        }
        positional, named = (
            [f.name for f in parameters if not f.kw_only],
            [f.name for f in parameters if f.kw_only],
        )
        known, body = {"_unset": MISSING, "_set": object.__setattr__}, []
        for f in fields(cls):
            name = value = f.name
            if f.default_factory is not MISSING:
                known[f"_make_{name}"] = f.default_factory
                value = (
                    f"_make_{name}() if {name} is _unset else {name}"
                    if f.init
                    else f"_make_{name}()"
                )
            if f.init or value != name:
                body.append(
                    f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}"
                )
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        keywords = ["*", *named] if named else []
        arguments = ", ".join(["self", *positional, *keywords])
        exec(f"def __init__({arguments}):\n " + "\n ".join([*body, "pass"]), known)
        init = known["__init__"]  # what the text need not say takes less time to compile
        init.__defaults__ = tuple(defaults[name] for name in positional if name in defaults)
        init.__kwdefaults__ = {name: defaults[name] for name in named if name in defaults}
        init.__annotations__ = {f.name: f.type for f in parameters} | {"return": None}
        init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        return init

    def _values(some):
        """What reads the values of some fields, as a tuple."""
        names = [f.name for f in some]
        return (
            attrgetter(*names)
            if len(names) > 1
            else lambda self: tuple(getattr(self, name) for name in names)
        )

    @recursive_repr()
    def _repr(self):
        text = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({text})"

    def _refuse(self, name, *value):
        raise dataclasses.FrozenInstanceError(
            f"cannot {'assign to' if value else 'delete'} field {name!r}"
        )


def plain(**values: Any) -> dict[str, Any]:
    """Values under their keys as JSON has them: lists for tuples, words for enums, and what an object with `to_dict`
    gives there."""
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(element) for element in value]
    if isinstance(value, StrEnum):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else value
