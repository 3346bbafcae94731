"""`halfmoon completion`: the scripts that have shells complete commands, and the answers to what those ask."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated

import typer

from halfmoon.cli.completion.candidates import ASKING, Files, candidates
from halfmoon.cli.shared.lines import plain
from halfmoon.errors import HalfmoonError, UsageError

app = typer.Typer(add_completion=False)

SCRIPTS = {
    "bash": r"""_halfmoon() {
    local IFS=$'\n' found code
    found=$("$1" completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    code=$?
    if [ $code -eq 3 ]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    else
        COMPREPLY=($found)
    fi
}
complete -F _halfmoon halfmoon""",
    "zsh": r"""#compdef halfmoon
_halfmoon() {
    local found code
    found=$("${words[1]}" completion zsh --line "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)
    code=$?
    if (( code == 3 )); then
        _files
    elif [[ -n $found ]]; then
        local -a lines=("${(@f)found}")
        _describe halfmoon lines
    fi
}
compdef _halfmoon halfmoon""",
    "fish": r"""function __halfmoon_complete
    set -l found (halfmoon completion fish --line (commandline -cp | string collect) 2>/dev/null)
    if test $status -eq 3
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
complete -c halfmoon -f -a '(__halfmoon_complete)'""",
}
"""By shell: what hands the line up to the cursor to `--line`. Exit code 3 asks for names of files."""

_BETWEEN = {"zsh": ":", "fish": "\t"}
FILES = 3


@app.command()
def completion(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    line: Annotated[str | None, typer.Option("--line", hidden=True)] = None,
) -> None:
    """Print the script with which bash, zsh or fish completes commands.

    Put this line into ~/.bashrc: source <(halfmoon completion bash), or the same with zsh into ~/.zshrc, behind compinit.

    For fish: halfmoon completion fish > ~/.config/fish/completions/halfmoon.fish

    Names of topics and groups are asked of the cluster that the line chooses, and left out when it does not answer in 0.5 s.

    Example: halfmoon completion bash
    """
    if shell not in SCRIPTS:
        raise UsageError(f"{shell!r:.100} is no shell that can be completed in: give bash, zsh or fish")
    if line is None:
        sys.stdout.write(SCRIPTS[shell] + "\n")
        return
    code = 0
    try:
        for word, text in candidates(line, context.find_root().command):
            word = word.rpartition("=")[2] if shell == "bash" else word  # which has the word begin behind the =
            sys.stdout.write(word + (_BETWEEN[shell] + plain(text) if text and shell in _BETWEEN else "") + "\n")
    except (Files, HalfmoonError) as exc:
        code = FILES if isinstance(exc, Files) else 1
    if any(thread.name == ASKING for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(code)  # it asks a cluster that does not answer, and would keep the process
    raise typer.Exit(code)
