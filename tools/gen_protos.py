"""Generate the Python code of ``proto/v1/*.proto``, beside the .proto files.

``python tools/gen_protos.py`` writes what changed; ``--check`` writes nothing and fails if a
committed file is stale. Generated code imports absolutely (``from ropewalk.proto.v1 import …``);
between rooms we import relatively, so the imports are rewritten.
"""

import argparse
import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ropewalk/proto/v1"


def generate(out: Path) -> None:
    """Run protoc on every .proto file, with its results under ``out``."""
    import grpc_tools
    from grpc_tools import protoc

    # The plugins live beside the interpreter; `make check` does not activate the environment.
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")
    includes = Path(grpc_tools.__file__).parent / "_proto"
    files = sorted(
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / PACKAGE).glob("*.proto")
    )
    arguments = ["-I", str(ROOT / "src"), "-I", str(includes)]
    arguments += [f"--python_out={out}", f"--pyi_out={out}"]
    arguments += [f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"]
    if protoc.main(["protoc", *arguments, *files]) != 0:
        sys.exit("protoc failed")
    for path in (out / PACKAGE).iterdir():
        text = path.read_text()
        text = re.sub(r"^from ropewalk\.proto\.v1 import", "from . import", text, flags=re.M)
        text = re.sub(r"^import ropewalk\.proto\.v1\.(\w+)$", r"from . import \1", text, flags=re.M)
        text = re.sub(r"\bropewalk\.proto\.v1\.(\w+_pb2)\.", r"\1.", text)
        path.write_text(text)


def main() -> int:
    """Write or check; the exit status is 1 if ``--check`` found a stale file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if files are stale"
    )
    check = parser.parse_args().check
    if check and sys.version_info >= (3, 14) and importlib.util.find_spec("grpc_tools") is None:
        print("not checked: the pinned generator has no build for this Python")
        return 0
    stale = []
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        for new in sorted((Path(folder) / PACKAGE).iterdir()):
            old = ROOT / "proto" / "v1" / new.name
            if old.exists() and old.read_text() == new.read_text():
                continue
            stale.append(new.name)
            if not check:
                old.write_text(new.read_text())
    if stale:
        print(("stale: " if check else "wrote: ") + ", ".join(stale))
    else:
        print("generated code is fresh")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
