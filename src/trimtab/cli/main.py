"""``trimtab``: finds the command, loads its file and turns errors into one line."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import trimtab
from trimtab.cli.commands import COMMANDS, Command
from trimtab.errors import SettingsError, TrimtabError

BAD_INPUT = 2
INTERRUPTED = 130
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)

_EXTRA_OF_PACKAGE = {
    "torch": "train",
    "transformers": "train",
    "peft": "train",
    "jinja2": "train",
    "ray": "ray",
    "plotly": "report",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: without the program's name; those of the process by default.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = next((command for command in COMMANDS if words and words[0] == command.name), None)
    try:
        if command is not None:
            code = _run(command, words[1:])
            sys.stdout.flush()  # where output cannot be written it must be known now
            return code
        _overview().parse_args(words or ["--help"])
        return 0
    except TrimtabError as error:
        return _fail(" ".join(str(error).split()), BAD_INPUT)
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_PACKAGE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _fail(f"this command needs {error.name}; pip install 'trimtab[{extra}]'", BAD_INPUT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe left; Python would complain again at exit
        return 0
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        _drop_output()
        return _fail(f"its output cannot be written ({error.strerror}); free space or send it elsewhere", BAD_INPUT)
    except MemoryError as error:
        return _fail(f"out of memory ({error or 'this machine has too little'}); ask for less at a time", BAD_INPUT)


def _drop_output() -> None:
    """Python would try once more at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see `{self.prog} --help`")


def _run(command: Command, words: list[str]) -> int:
    module = importlib.import_module(f"trimtab.cli.{command.module}")
    if command.own_parser:
        return int(module.run(words))
    parser = _Parser(prog=f"trimtab {command.name}", description=module.__doc__)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(words)))


def _overview() -> argparse.ArgumentParser:
    width = max(len(command.name) for command in COMMANDS)
    listed = "\n".join(f"  {command.name:<{width}}  {command.help}" for command in COMMANDS)
    parser = _Parser(
        prog="trimtab",
        description="Keeps every rank of a vision-language-model training step equally busy.",
        epilog=f"commands:\n{listed}\n\n`trimtab COMMAND --help` tells more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trimtab {trimtab.__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=[command.name for command in COMMANDS])
    return parser


def _fail(message: str, code: int) -> int:
    print(f"trimtab: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
