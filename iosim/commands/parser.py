"""The parser of every command: one-line errors that suggest, help in groups, no abbreviation of an old spelling."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from iosim.base.errors import InputError, unknown_name

COMMON = "common options"
"""The group that help prints first: about ten options, alike in every command."""
HELP_WIDTH = 100
"""The widest that help is printed; a narrower terminal has its own width."""


class UnknownWordError(InputError):
    """A word that is no option of a command, and none of its positional words; `hints` says what was meant."""

    def __init__(self, parser: CommandParser, word: str) -> None:
        super().__init__(word)
        self.parser, self.word = parser, word


class CommandParser(argparse.ArgumentParser):
    """argparse with one-line errors, suggestions for what is misspelt, and help in groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=settings.pop("formatter_class", Formatter), **settings)

    def group(self, title: str) -> Any:
        """The group of options with this title, a new one where there is none yet."""
        return next((g for g in self._action_groups if g.title == title), None) or self.add_argument_group(title)

    def get_default(self, dest: str) -> Any:
        """The default of an option, which spellings of old have none of."""
        defaults = (a.default for a in self._actions if a.dest == dest and a.default != argparse.SUPPRESS)
        return next((default for default in defaults if default is not None), self._defaults.get(dest))

    def error(self, message: str) -> NoReturn:
        told = "accepted" in message or "did you mean" in message
        raise InputError(message if told else f"{message}; '{self.prog} --help' shows what is accepted")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Words that are no option of this command are refused here, where the command is known."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise UnknownWordError(self, unknown[0].split("=")[0])
        return parsed, unknown

    def spellings(self) -> list[str]:
        return [s for action in self._actions if action.help != argparse.SUPPRESS for s in action.option_strings]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
            raise unknown_name(name, str(value), [str(choice) for choice in action.choices])

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        values = super()._get_values(action, arg_strings)
        if values == [] and action.option_strings and action.nargs is None:  # Python 3.11 drops the -- of --gpu=--
            self.error(f"{action.option_strings[0]} '--' is no value")
        return values

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What a word may abbreviate: spellings of old only where no option of today fits."""
        fitting = super()._get_option_tuples(option_string)
        return [one for one in fitting if one[0].help != argparse.SUPPRESS] or fitting

    def format_usage(self) -> str:
        return f"usage: {self._usage()}\n"

    def _usage(self) -> str:
        positional = [a for a in self._actions if not a.option_strings and a.help != argparse.SUPPRESS]
        optional = len(self._actions) - len(positional)
        return " ".join([self.prog, *(str(a.metavar or a.dest) for a in positional), *["[OPTIONS]"] * (optional > 0)])

    def format_help(self) -> str:
        from iosim.show.terminal import folded

        self.usage = self._usage().replace("%", "%%")
        groups = list(self._action_groups)
        try:
            self._action_groups.sort(key=lambda group: (group is not self._positionals, group.title != COMMON))
            return folded(super().format_help())
        finally:
            self.usage = None
            self._action_groups[:] = groups


class Formatter(argparse.HelpFormatter):
    """A column of options as wide as most of them need, and one metavar for an option with two spellings."""

    def __init__(self, prog: str) -> None:
        from iosim.show.terminal import columns

        super().__init__(prog, max_help_position=26, width=min(columns() or HELP_WIDTH, HELP_WIDTH) - 1)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class ListFormatter(Formatter, argparse.RawDescriptionHelpFormatter):
    """The same, with the lines of the description as they are."""
