"""Train and test as on a machine that was installed a minute ago: a bare Debian, an ordinary user.

debootstrap installs the suite of this machine (its required and important packages, python3, git,
make and ca-certificates) into a folder outside of the checkout. There a user without rights clones
the last commit and runs ``make demo`` and ``make test`` with an empty environment. What it needs of
this machine is given to it: how pip finds packages, certificates, the names of hosts.

    python tools/fresh.py [shell command, in place of `make demo && make test`]

The system is kept in ``$FRESH_DIR``, by default ``~/.cache/ropewalk-fresh``, and so is what pip has
downloaded; the user's home, the temporary files and every process end with the run. Needs root, for
mounts of its own that nobody else sees.
"""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER = "fresh"
HOME = f"/home/{USER}"
PACKAGES = "python3,python3-venv,git,make,ca-certificates"
COMMAND = "make demo && make test"
_KEPT = re.compile(
    r"PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|(?:https?|no|all)_proxy", re.IGNORECASE
)
_NAMES_PATHS = re.compile(
    r"(pip_)?((extra[-_])?index[-_]url|find[-_]links|(client[-_])?cert)|ssl_cert_\w+|requests_ca_bundle",
    re.IGNORECASE,
)
_ETC = ("resolv.conf", "hosts", "ssl/certs")


class CannotRunError(Exception):
    """This machine lacks something; the sentence says what to do."""


def main(words: list[str]) -> int:
    """Install the system unless it is there, and run the command in it; returns its exit code."""
    try:
        folder = Path(os.environ.get("FRESH_DIR", "~/.cache/ropewalk-fresh")).expanduser().resolve()
        _check(folder)
        base = _system(folder)
        return _run(folder, base, " ".join(words) or COMMAND)
    except CannotRunError as error:
        print(f"make fresh: {error}", file=sys.stderr)
        return 2


def _check(folder: Path) -> None:
    if os.geteuid():
        raise CannotRunError("run it as root, which may install a system and mount folders in it")
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            raise CannotRunError(f"{program} is not here: apt-get install {package}")
    if folder.is_relative_to(ROOT):
        raise CannotRunError(f"FRESH_DIR={folder} is in the checkout; name a folder outside of it")


# -- the system ------------------------------------------------------------------------------------


def mirror(targets: str, suite: str) -> str:
    """The address of a suite's packages.

    Args:
        targets: What ``apt-get indextargets`` says: address, suite and component in each line.
        suite: As in ``bookworm``.
    """
    for line in targets.splitlines():
        address, *what = line.split()
        if what == [suite, "main"]:
            return address
    raise CannotRunError(f"the sources of apt name no `main` of {suite}; see /etc/apt")


def _system(folder: Path) -> Path:
    """The installed system; installed now unless an earlier run did."""
    release = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    if found is None or not re.search(r"^ID=debian$", release, re.MULTILINE):
        raise CannotRunError("this is no release of Debian, whose mirror debootstrap would use")
    base = folder / found[1]
    if base.exists():
        return base
    form = "$(SITE) $(RELEASE) $(COMPONENT)"
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],  # noqa: S607
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=folder))
    try:
        address = mirror(targets, found[1])
        _do("debootstrap", f"--include={PACKAGES}", found[1], str(new), address)
        _do("chroot", str(new), "useradd", "--create-home", "--shell", "/bin/bash", USER)
        new.chmod(0o755)
        new.rename(base)
    except BaseException:
        shutil.rmtree(new)
        raise
    return base


# -- what pip needs --------------------------------------------------------------------------------


def merged_pip_conf(texts: Iterable[str]) -> configparser.RawConfigParser:
    """One configuration of several, where a later one overrules; as pip reads them."""
    merged = configparser.RawConfigParser()
    for text in texts:
        merged.read_string(text)
    return merged


def local_paths(settings: Iterable[tuple[str, str]]) -> list[Path]:
    """The folders and files of this machine that settings name, as paths or ``file:`` addresses.

    Args:
        settings: Variables of the environment and lines of pip's configuration: name, value.
    """
    found = set()
    for name, value in settings:
        for word in value.split() if _NAMES_PATHS.fullmatch(name) else ():
            path = Path(re.sub(r"^file:(//)?", "", word))
            if path.is_absolute() and path.exists():
                # An index has its files beside it.
                found.add(path.parent if path.name == "simple" else path)
    return sorted(path for path in found if not found & set(path.parents))


def _pip_conf_files(environment: Mapping[str, str]) -> list[Path]:
    home = Path(environment.get("HOME", "/root"))
    config = Path(environment.get("XDG_CONFIG_HOME", home / ".config"))
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    if own := environment.get("PIP_CONFIG_FILE"):
        files.append(Path(own))
    return [file for file in files if file.is_file()]


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which pip reaches its index."""
    mine = ("PIP_CACHE_DIR", "PIP_CONFIG_FILE")  # of this user; the other has its own
    return {
        name: value
        for name, value in environment.items()
        if _KEPT.fullmatch(name) and name not in mine
    }


# -- a run -----------------------------------------------------------------------------------------


def _run(folder: Path, base: Path, command: str) -> int:
    run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    try:
        run.chmod(0o755)
        home = run / "home"
        (home / ".config/pip").mkdir(parents=True)
        _clone(home / "origin.git")
        conf = merged_pip_conf(file.read_text() for file in _pip_conf_files(os.environ))
        with (home / ".config/pip/pip.conf").open("w") as stream:
            conf.write(stream)
        kept = kept_environment(os.environ)
        settings = [each for name in conf.sections() for each in conf.items(name)]
        read_only = dict.fromkeys(
            [*local_paths([*settings, *kept.items()]), *(Path("/etc", name) for name in _ETC)]
        )
        cache = folder / "pip-cache"
        cache.mkdir(exist_ok=True)
        for name in ("tmp", "var-tmp"):
            (run / name).mkdir()
            (run / name).chmod(0o1777)
        for path in (home, cache):
            _do("chown", "--recursive", _owner(base), str(path))
        mounts = [
            (home, HOME), (run / "tmp", "/tmp"), (run / "var-tmp", "/var/tmp"),  # noqa: S108
            (cache, "/var/cache/pip"),
        ]  # fmt: skip
        script = _mounting(base, mounts, [(path, str(path)) for path in read_only if path.exists()])
        kept["PIP_CACHE_DIR"] = "/var/cache/pip"
        return _inside(base, script, kept, command)
    finally:
        shutil.rmtree(run)  # its mounts have ended with the namespace


def _clone(target: Path) -> None:
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.run(
        [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
    ).stdout
    if changed:
        print("make fresh: what is not committed is not tested", file=sys.stderr)
    _do("git", "clone", "--quiet", "--bare", "--no-hardlinks", str(ROOT), str(target))


def _owner(base: Path) -> str:
    lines = (base / "etc/passwd").read_text().splitlines()
    [(uid, gid)] = [line.split(":")[2:4] for line in lines if line.startswith(f"{USER}:")]
    return f"{uid}:{gid}"


def _mounting(
    base: Path, writable: list[tuple[Path, str]], read_only: list[tuple[Path, str]]
) -> str:
    """Shell commands that mount what the system is to see; makes the places for it."""
    lines = [
        f"mount -t proc proc {base}/proc",
        f"mount --rbind /sys {base}/sys",
        f"mount --rbind /dev {base}/dev",
        f"mount -t tmpfs -o mode=1777 shm {base}/dev/shm",  # noqa: S108 - of this run alone
    ]
    for source, place in (*writable, *read_only):
        target = base / place.removeprefix("/")
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        lines.append(shlex.join(["mount", "--bind", str(source), str(target)]))
        if (source, place) in read_only:
            lines.append(shlex.join(["mount", "-o", "remount,bind,ro", str(target)]))
    return "\n".join(lines)


def _inside(base: Path, mounting: str, environment: Mapping[str, str], command: str) -> int:
    """Run a command as the user, in namespaces of mounts and processes that end with it."""
    variables = {
        "HOME": HOME, "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
        **environment,
    }  # fmt: skip
    # bash stays the first process, which takes the ends of all whose parents are gone.
    steps = (
        f"cd && git clone --quiet origin.git ropewalk && cd ropewalk && {{ {command}; }}\nexit $?"
    )
    words = [
        "chroot", f"--userspec={USER}:{USER}", str(base), "env", "-i",
        *(f"{name}={value}" for name, value in variables.items()), "bash", "-c", steps,
    ]  # fmt: skip
    script = f"set -e\n{mounting}\nexec {shlex.join(words)}"
    own = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    return subprocess.run([*own, "bash", "-c", script], check=False).returncode


def _do(*words: str) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
