"""The parser of every command, options made of what fields say of themselves, lists of values, and messages that name
the option of a field: one line each, which suggests.

A list is written alike for every option that takes one: --x a,b means --x a --x b. An option that takes one value
refuses a second.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, NoReturn

from iosim.base.errors import InputError, spelled, unknown_name
from iosim.base.fields import About, Kind, default_text
from iosim.base.records import replace
from iosim.base.units import list_text, sizes
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.terminal import columns, folded
from iosim.studies.requests import CONDITIONS, OF_MODEL, OVERRIDES

Run = Callable[[argparse.Namespace], int]
"""What runs a command, with its options; returns the exit code."""
SPELLED = {about.name: about.option for about in (*FIELDS.values(), *OVERRIDES.values())} | {
    "profile": "--gpu",
    "profiles": "--gpu",
    "l2_start": "--l2",
    "path": "--out",
    "gpus": "--num-gpus",
}
"""Name in Python -> option, where it is not the name with dashes; None where only Python can give it."""


def with_options(error: InputError) -> str:
    """An error's message as the command line says it: `page_size` 48 is --page-size 48."""
    return spelled(error.marked, _option)


def spelling(name: str) -> str:
    return _option(name, None)


def typed(values: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(_option(name, str(value)))
        else:
            listed = value if isinstance(value, list) else [value]
            texts = (
                "x".join(map(str, item)) if isinstance(item, tuple) else str(item)
                for item in listed
            )
            words += [spelling(name), list_text(texts)]
    return words


def _option(name: str, value: str | None) -> str:
    option = SPELLED.get(name, f"--{name.replace('_', '-')}")
    if option is None:
        return name if value is None else f"{name} {value}"
    if value == "False":
        return f"--no-{option[2:]}"
    return option if value in (None, "True") else f"{option} {value}"


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


Names = Collection[str]
Fields = Mapping[str, About]
GIVEN = "_given"
"""Where parsed arguments keep all that each option was given."""


class Given(argparse.Action):
    """An option whose value is made of all that it was given; by default a list, which goes on where the option stands
    again."""

    made_of: Callable[..., Any] = staticmethod(list)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        collected: list[Any] = vars(namespace).setdefault(GIVEN, {}).setdefault(self.dest, [])
        collected += values if isinstance(values, list) else [values]
        # argparse would let the last value win in silence: half of a comparison would be missing.
        if isinstance(self, One) and len(collected) > 1:
            raise SeveralValuesError(
                parser, str(option), ",".join(map(str, collected)), len(collected)
            )
        setattr(namespace, self.dest, self.made_of(collected))


class Joined(Given):
    """An option whose list is read later, as text: given again, it goes on after a comma, whose space says that what
    follows are no thousands."""

    made_of = staticmethod(", ".join)


class One(Given):
    """An option that takes one value; a list, and a second value, are refused."""

    made_of = staticmethod(itemgetter(0))


class Once(One):
    """What argparse does with an option of one value, such as --format and --out; a second one is refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        if option is None or self.nargs is not None:  # words without an option, and lists of them
            setattr(namespace, self.dest, values)
        else:
            super().__call__(parser, namespace, values, option)


class OnOff(argparse.BooleanOptionalAction):
    """A flag and its opposite, of which one is given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        typed = vars(namespace).setdefault(GIVEN, {}).setdefault(self.dest, [])
        typed.append(str(option))
        if len({*typed}) > 1:
            raise InputError(f"{typed[0]} contradicts {typed[1]}; give one of them")
        super().__call__(parser, namespace, values, option)


class OneName(One):
    def __call__(self, *place: Any) -> None:
        parser, namespace, text, *option = place
        super().__call__(parser, namespace, names(text), *option)


def without_defaults(table: Fields, *names: str) -> dict[str, About]:
    return {name: replace(table[name], default=None, default_text="", usual=None) for name in names}


def _add_option(group: Any, field: About, several: bool) -> None:
    """Adds a field's option to a parser; `several`: it can be typed more than once, or with commas."""
    settings: dict[str, Any] = {"dest": field.name, "help": _help(field).replace("%", "%%")}
    settings |= (
        _flag_settings(field) if field.kind is Kind.FLAG else _value_settings(field, several)
    )
    if field.bare is not None:
        settings |= {"nargs": "?", "const": field.bare}
    group.add_argument(
        field.option, *field.spellings, default=_parser_default(field, several), **settings
    )


def _help(field: About) -> str:
    """The help of a field's option: what it is, the words it takes, what it is by default."""
    text = field.help
    if any(word not in field.help for word in field.words):
        text += f": {', '.join(field.words)}"
    default = "" if field.kind is Kind.FLAG else default_text(field)
    if field.usual is not None:
        default = field.text(field.usual)
    if default:
        text += f" (default: {default})"
    return spelled(text, _option)


def _parser_default(field: About, several: bool) -> Any:
    """What argparse gives where the option is not typed, in the form in which typed values come. A field's usual value
    is not it: None tells "not typed" apart, and another option may say it."""
    if field.kind in (Kind.NAMES, Kind.NUMBERS):
        return list(field.asked) if field.asked else None
    if several and field.kind not in (Kind.FLAG, Kind.SIZES):
        return None if field.asked is None else [field.asked]
    return field.asked


def _flag_settings(field: About) -> dict[str, Any]:
    """argparse's settings of a flag."""
    if str(field.option).startswith("--no-"):
        # A flag that is on by default is typed only to turn it off: --no-x alone is listed.
        return {"action": "store_false", "help": f"without {field.help}"}
    if field.default is False:
        return {"action": "store_true"}
    return {"action": OnOff}


def _value_settings(field: About, several: bool) -> dict[str, Any]:
    """argparse's settings of an option that takes a value."""
    # Lists: of names they are parted at commas here; of sizes they stay text, since "1k:64k:x2" and "1,024" are read by
    # the field itself.
    if field.kind in (Kind.NAMES, Kind.NUMBERS):
        return {"action": Given, "type": names, "metavar": field.metavar}
    if field.kind is Kind.SIZES:
        return {"action": Joined, "metavar": field.metavar}
    if several:
        return {
            "action": Given,
            "type": _reader(field, True),
            "metavar": f"{field.metavar},...",
        }
    settings = {"action": One, "type": _reader(field, False), "metavar": field.metavar}
    if field.kind is Kind.WORD and field.normal is About.normal:
        settings["choices"] = field.words
    return settings


def _reader(field: About, several: bool) -> Callable[[str], Any]:
    """The function by which argparse reads a field's text; `several`: a list, parted at commas."""

    def read(text: str) -> Any:
        try:
            if not several:
                return field.read(text, "value")
            parts = text.split(",")
            return (
                sizes(text, "value")
                if field.kind is Kind.WHOLE
                else [field.read(p.strip(), "value") for p in parts]
            )
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


COMMON = "common options"
"""The group that help prints first: about ten options, alike in every command."""
USUAL_GPU = "a100"
MODEL = "how the L2 and HBM are modelled"
FORMATS = ("table", "json", "csv")
ALL_SIZES = (
    "seq_q",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "dtype",
    "passes",
    "seq_k",
    "head_dim_v",
)
MOST_USED = ("batch", "heads", "kv_heads", "head_dim", "dtype")
OF_MASK = (
    "window",
    "window_right",
    "mask_block",
    "mask_stride",
    "global_tokens",
    "mask_file",
    "key_padding",
    "mask_storage",
)
FORCE = "--force"
PROFILED = ("batch", "heads", "kv_heads", "head_dim", "dtype", "seq_k", "window")
KNOBS = (
    "tile",
    "stages",
    "order",
    "heavy_first",
    "fold",
    "section_heads",
    "direction",
    "scheduler",
    "cluster",
    "splits",
)
"""Fields of the problem and settings of a kernel that a profile may leave open."""
HELP_WIDTH = 100
"""The widest that help is printed; a narrower terminal has its own width."""


class UnknownWordError(InputError):
    """A word that a command does not take; `before` is the option without a value that it follows, if it does, and
    `after` the word that follows it."""

    def __init__(
        self, parser: CommandParser, word: str, before: str | None, after: str | None
    ) -> None:
        super().__init__(word)
        self.parser, self.word, self.before, self.after = parser, word, before, after


class SeveralValuesError(InputError):
    """Several values of an option that takes one."""

    def __init__(
        self, parser: argparse.ArgumentParser, option: str, text: str, number: int
    ) -> None:
        super().__init__(
            f"{option} {text} are {number} values; '{parser.prog}' takes one, so accepted: one of them"
        )
        self.parser, self.option = parser, option


ALIASES = {"--num-gpus": "--gpus", "--gpu": "--gpus", "--out": "--output"}
"""Other spellings that are taken, and that no help prints: the first that a command has an option for has it."""


class CommandParser(argparse.ArgumentParser):
    """argparse with one-line errors, suggestions for what is misspelt, and help in groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=settings.pop("formatter_class", Formatter),
            allow_abbrev=False,
            **settings,
        )
        for word in (None, "store"):
            self.register("action", word, Once)

    def group(self, title: str) -> Any:
        return next(
            (g for g in self._action_groups if g.title == title), None
        ) or self.add_argument_group(title)

    def add_names(
        self,
        spelling: str,
        *,
        default_name: str | None,
        several: bool,
        help: str,
        metavar: str = "NAME",
    ) -> None:
        """An option that takes a list of names, or one of those that other commands take a list of; its value is None
        where there is no default."""
        settings: dict[str, Any] = {"action": OneName, "default": default_name, "metavar": metavar}
        if several:
            default = None if default_name is None else default_name.split(",")
            settings = {
                "action": Given,
                "default": default,
                "type": names,
                "metavar": f"{metavar},...",
            }
        self.group(COMMON).add_argument(spelling, help=help, **settings)

    def add_fields(
        self,
        group: str,
        table: Fields,
        names: Names | None = None,
        *,
        several: Names = (),
        but: Names = (),
    ) -> None:
        """Options of the fields in `table`, or of those among `names`, in a group of the help, but for those in `but`;
        `several` take lists."""
        for name in table if names is None else names:
            if table[name].option is not None and name not in but:
                _add_option(self.group(group), table[name], name in several)

    def add_gpu(
        self, default_name: str | None = USUAL_GPU, help_text: str = "", several: bool = False
    ) -> None:
        """--gpu: `args.gpu` is the name of a GPU or profile file, or with `several` a list of them."""
        help_text = help_text or (
            "GPUs or profile files, such as a100,h100" if several else "GPU or profile file"
        )
        default = f" (default: {default_name})" if default_name else ""
        self.add_names(
            "--gpu", default_name=default_name, several=several, help=help_text + default
        )

    def add_kernel(
        self,
        default_name: str | None,
        help_text: str = "",
        several: bool = False,
        default: str = "",
    ) -> None:
        """--kernel: `args.kernel` is a name, or with `several` a list; `default` says it where `default_name` does not."""
        # The two defaults differ where the list depends on another option: help says both.
        help_text, default = (
            help_text or ("kernels, such as naive,fa2" if several else "kernel"),
            default or default_name or "",
        )
        if default:
            gpu_default = (
                "; default is the GPU's own: fa3, fa4, fa2 or cutlass"
                if "default" in default
                else ""
            )
            help_text = f"{help_text} (default: {default}{gpu_default})"
        self.add_names("--kernel", default_name=default_name, several=several, help=help_text)

    def add_conditions(self, *names: str) -> None:
        self.add_fields(MODEL, CONDITIONS, names or CONDITIONS)

    def add_model(self, *, layers: bool = True, share: bool = True) -> None:
        """--model, --tensor-parallel and, unless the command has its own, --layers."""
        help_text = "take the layers of a model: a name (iosim models list), a Hugging Face config.json or its directory"
        self.group(COMMON).add_argument("--model", metavar="NAME|FILE", action=One, help=help_text)
        if layers or share:
            self.add_fields(
                "of a model", OF_MODEL, ["layers"] * layers + ["tensor_parallel"] * share
            )

    def add_problem(self, *, several: Names = ("seq_q",), lengths: str | None = None) -> None:
        """--batch, --heads, ... as the problem's fields spell them; --seq-len is `lengths` by default."""
        listed = "seq_q" in several
        help_text = (
            "query tokens: 4096, 512,4096 or 1k:64k:x2 (k is 1024)" if listed else "query tokens"
        )
        # --seq-len is the one size whose default depends on the command: argparse gets None, and the
        # command's own lengths wait in `usual_lengths`.
        length = replace(
            FIELDS["seq_q"],
            kind=Kind.SIZES,
            help=help_text,
            metavar="N,..." if listed else "N",
            default=None,
            usual=None,
            default_text=lengths or str(FIELDS["seq_q"].usual),
        )
        self.set_defaults(usual_lengths=lengths)
        first = {**FIELDS, "seq_q": length, "causal": BESIDES["causal"]}
        self.add_fields(COMMON, first, ("seq_q", *MOST_USED, "causal", "passes"), several=several)
        elsewhere = ("seq_q", "mask", "passes", *MOST_USED, *OF_MASK)
        self.add_fields("more of the problem", FIELDS, but=elsewhere, several=several)
        self.add_fields("more of the problem", BESIDES, ("prefix",))
        self.add_fields(
            "mask",
            {**FIELDS, **without_defaults(FIELDS, "mask")},
            ("mask", *OF_MASK),
            several=several,
        )

    def add_settings(self, *, several: Names = ()) -> None:
        """--tile, --warps, ...: settings over the kernel's own choice; those in `several` take lists."""
        self.add_fields("kernel settings, over the kernel's own choice", OVERRIDES, several=several)

    def add_output(self, formats: Sequence[str] = FORMATS, *, page: bool = False) -> None:
        """--format, --out and, of a command that draws, --html: `page`, or a format of it is "html"."""
        g = self.group("output")
        # Formats as words, "table, json or csv".
        *first_formats, last = (name for name in formats if name != "html")  # --html says it
        help_text = f"{', '.join(first_formats)} or {last} (default: {formats[0]})"
        g.add_argument(
            "--format", choices=formats, default=formats[0], metavar="FORMAT", help=help_text
        )
        g.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")
        g.add_argument(
            "--quiet", "-q", action="store_true", help="nothing on standard error but errors"
        )
        if "csv" in formats:
            help_text = "these columns of the CSV alone, in place of the tables: gpu,kernel,time_s"
            g.add_argument(
                "--columns", action=Given, type=names, metavar="NAME,...", help=help_text
            )
            help_text = "the rows of the CSV by a column, in place of the tables: time_s, or time_s:desc for the largest first"
            g.add_argument("--sort", action=One, type=str, metavar="NAME", help=help_text)
        self.set_defaults(places=("out",))
        if page or "html" in formats:
            self.add_page()

    def add_page(self, help_text: str = "also write a page with figures there") -> None:
        g = self.group("output")
        g.add_argument("--html", metavar="FILE", help=help_text)
        g.add_argument(
            "--interactive",
            action="store_true",
            help="figures drawn by plotly, to zoom, select and export (needs iosim[plot])",
        )
        g.add_argument(
            FORCE,
            action="store_true",
            help="write pages over files that this command did not write",
        )

    def add_actions(
        self, *actions: tuple[str, Run, str, str, str, Sequence[str]]
    ) -> list[CommandParser]:
        """What a command does by its second word: of each action its name, the function that runs it, what it does, its
        own word (empty for none), what that is, and the formats of what it prints. Returns their parsers."""
        names = "|".join(name for name, *_ in actions)
        subparsers = self.add_subparsers(dest="action", required=True, metavar=names)
        parsers: list[CommandParser] = []
        for name, run, does, word, word_help, formats in actions:
            parsers.append(subparsers.add_parser(name, help=does))
            parsers[-1].set_defaults(run=run)
            if word:
                parsers[-1].add_argument(word, metavar=word.upper(), help=word_help or None)
            if formats:
                parsers[-1].add_output(formats)
        return parsers

    def add_calls(self, title: str) -> None:
        """Options that say what a profile leaves open; None is not said, and nothing is guessed."""
        list_help = "; of a list each launch takes the one that fits its grid"
        lengths = replace(
            FIELDS["seq_q"], kind=Kind.SIZES, help=f"query tokens{list_help}", metavar="N,..."
        )
        columns = replace(
            FIELDS["head_dim"], help="columns of Q and K; of a list the one that fits"
        )
        fields = {**FIELDS, "seq_q": lengths, "head_dim": columns}
        self.add_fields(title, without_defaults(fields, "seq_q", *PROFILED), several=("head_dim",))
        causal = replace(
            BESIDES["causal"], default=None, help="whether keys up to the query are kept"
        )
        self.add_fields(title, {"causal": causal})
        own_kernels = "kernel settings of the project's own kernels"
        self.add_fields(own_kernels, OVERRIDES, KNOBS)
        self.group(own_kernels).add_argument(
            "--persistent", action="store_true", default=None, help=argparse.SUPPRESS
        )

    def error(self, message: str) -> NoReturn:
        # A list for an option with one value fails as a bad size: it is told as what it is, unless the
        # comma looks like one of thousands, which the message says already.
        several = re.fullmatch(
            r"argument (--[\w-]+): value '([\w.]+(?:, ?[\w.]+)+)' is not a size.*", message
        )
        if several and not re.search(r"write [0-9]+$", message):
            raise SeveralValuesError(self, several[1], several[2], several[2].count(",") + 1)
        message = in_common_form(message)
        says_what = any(word in message for word in ("accepted", "did you mean", "write "))
        raise InputError(
            message if says_what else f"{message}; '{self.prog} --help' shows what is accepted"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Words that are no option of this command are refused here, where the command is known."""
        # Put in late, when all options are there: an alias never hides an option of that name.
        for option, alias in ALIASES.items():
            if option in self._option_string_actions:
                self._option_string_actions.setdefault(alias, self._option_string_actions[option])
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word, _, value = unknown[0].partition("=")
            place = list(args).index(unknown[0]) if unknown[0] in (args or ()) else 0
            last = args[place - 1] if place else ""
            # A flag before an unknown word: "--causal true" was typed.
            flag = (
                last if getattr(self._option_string_actions.get(last), "nargs", None) == 0 else None
            )
            raise UnknownWordError(
                self, word, flag, value or next(iter(args[place + 1 : place + 2]), None)
            )
        return parsed, unknown

    def spellings(self) -> list[str]:
        return [
            s
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for s in action.option_strings
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = (
                action.option_strings[0]
                if action.option_strings
                else str(action.metavar or action.dest)
            )
            raise unknown_name(name, str(value), [str(choice) for choice in action.choices])

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        values = super()._get_values(action, arg_strings)
        if (
            values == [] and action.option_strings and action.nargs is None
        ):  # Python 3.11 drops the -- of --gpu=--
            self.error(f"{action.option_strings[0]} '--' is no value")
        return values

    def format_usage(self) -> str:
        return f"usage: {self._usage()}\n"

    def _usage(self) -> str:
        positional = [
            a for a in self._actions if not a.option_strings and a.help != argparse.SUPPRESS
        ]
        optional = len(self._actions) - len(positional)
        return " ".join(
            [
                self.prog,
                *(str(a.metavar or a.dest) for a in positional),
                *(["[OPTIONS]"] if optional else []),
            ]
        )

    def format_help(self) -> str:
        self.usage = self._usage().replace("%", "%%")
        groups = list(self._action_groups)
        try:
            # Positional words, then the common options, then the rest as they were added; argparse prints
            # groups in their order, so it is put back for whoever parses next.
            self._action_groups.sort(
                key=lambda group: (group is not self._positionals, group.title != COMMON)
            )
            return folded(super().format_help())
        finally:
            self.usage = None
            self._action_groups[:] = groups


def in_common_form(message: str) -> str:
    """argparse's message as iosim's others are: the option, its value, what is wrong."""
    for pattern, form in ARGPARSE_FORMS:
        message = re.sub(pattern, form, message)
    return message


ARGPARSE_FORMS = (
    (r"^argument ([^\s/:]+)(?:/\S+)?: value (?=')", r"\1 "),
    (
        r"^argument ([^\s/:]+)(?:/\S+)?: expected (?:one argument|at least one argument)$",
        r"\1 lacks its value",
    ),
    (
        r"^argument ([^\s/:]+)(?:/\S+)?: ignored explicit argument ('.*')$",
        r"\1 takes no value, and has \2; accepted: \1 alone",
    ),
    (
        r"^argument ([^\s/:]+)(?:/\S+)?: not allowed with argument ([^\s/:]+)(?:/\S+)?$",
        r"\1 contradicts \2; accepted: one of them",
    ),
    (r"^the following arguments are required: (.*)$", r"\1 is missing"),
    (r"^one of the arguments (.*) is required$", r"one of \1 is missing"),
    (r"^argument ([^\s/:]+)(?:/\S+)?: ", r"\1 "),
)
"""argparse's messages, and what is said in their place."""


class Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(
            prog, max_help_position=26, width=min(columns() or HELP_WIDTH, HELP_WIDTH) - 1
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class ListFormatter(Formatter, argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps the lines of the description as they are."""
