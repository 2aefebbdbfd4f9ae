"""Rules for the entries of a project directory that are left out of a package.

Pure. ``.gitignore`` means what it means to git, at every level: the last pattern that matches
decides, the deepest file first, and below a folder that is left out nothing comes back. Two
differences: ``.ropewalkignore`` has the same syntax and is read as if it stood at the end of the
``.gitignore`` beside it, so ``!vocabulary.txt`` there sends a file that git does not keep; and
git's files outside the project (``core.excludesFile``, ``.git/info/exclude``) are not read.

Source: https://git-scm.com/docs/gitignore; patterns are translated by ``pathspec``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

IGNORE_FILES = (".gitignore", ".ropewalkignore")  # later ones decide over earlier ones

_NEVER_SENT = frozenset(
    {
        ".git",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".venv",
        "__pycache__",
        "node_modules",
    }
)
ENVIRONMENT_MARK = "pyvenv.cfg"  # a folder with this file is a virtual environment


def is_never_sent(name: str) -> bool:
    """Return whether a file or folder of this name is left out, whatever the ignore files say."""
    return name in _NEVER_SENT or name.endswith(".pyc")


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The ignore files that hold in one folder: its own and those of the folders above.

    Attributes:
        levels: Rules of each folder that has some, from the project down: the length of its path
            with the slash behind it, and its patterns.
    """

    levels: tuple[tuple[int, tuple[GitIgnoreSpecPattern, ...]], ...] = ()

    def below(self, folder: str, lines: Iterable[str]) -> "IgnoreRules":
        """Add a folder's rules to those above it.

        Args:
            folder: Path relative to the project, ``"data/raw/"``; empty: the project itself.
            lines: Lines of its ignore files, joined.
        """
        patterns = tuple(_compile(lines))
        return IgnoreRules((*self.levels, (len(folder), patterns))) if patterns else self

    def leave_out(self, path: str) -> bool:
        """Decide whether an entry is left out. Its folder is not: nobody asks about what is below
        one.

        Args:
            path: Relative to the project; of a folder with a slash behind it.
        """
        for start, patterns in reversed(self.levels):
            for pattern in reversed(patterns):
                if _matches(pattern, path[start:]):
                    return bool(pattern.include)
        return False


def _compile(lines: Iterable[str]) -> Iterator[GitIgnoreSpecPattern]:
    for line in lines:
        # Folders below this one; pathspec takes the shorter form for what is above, too.
        same = f"{line}*/" if line.endswith("/**/") else line
        try:
            pattern = GitIgnoreSpecPattern(same)
        except GitIgnorePatternError:
            continue  # as in git, it matches nothing
        if pattern.include is not None:  # neither a comment nor empty
            yield pattern


def _matches(pattern: GitIgnoreSpecPattern, path: str) -> bool:
    """Return whether a pattern names this entry itself.

    The regular expressions of ``pathspec`` match what is below a folder that is named, too, which
    makes patterns with ``!`` bring back more than in git. Their one group is the slash behind the
    folder; an expression without it that ends in a slash (``data/**``) is of what is below.
    """
    regex = pattern.regex
    if regex is None:
        return False
    for match in regex.finditer(path):
        whole = match.end() == len(path)
        if not match.group().endswith("/") or whole == bool(regex.groupindex):
            return True
    return False
