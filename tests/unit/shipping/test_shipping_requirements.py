"""What a project says it needs: read from its files, as pip and build tools would name it."""

import pytest

from ropewalk.shipping.package import declared_requirements, missing_packages

TXT = """\
# what the program needs
numpy>=1.26  # arrays
Torch_Vision[extra] == 0.2
ruamel.yaml
scikit-learn @ https://example.com/a.whl

--index-url https://example.com/simple
-c constraints.txt
-r more.txt
git+https://example.com/a.git
tomli; python_version < "3.11"
"""
TOML = """\
[project]
name = "mine"
dependencies = ["numpy", "jax>=0.4"]
[project.optional-dependencies]
dev = ["pytest"]
"""
POETRY = '[tool.poetry.dependencies]\npython = "^3.11"\npandas = "*"\n'


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        pytest.param(
            "requirements.txt",
            TXT,
            [
                "numpy", "torch-vision", "ruamel-yaml", "scikit-learn", "-r more.txt",
                "git+https://example.com/a.git", 'tomli; python_version < "3.11"',
            ],
            id="requirements.txt",
        ),
        pytest.param("pyproject.toml", TOML, ["numpy", "jax"], id="pyproject.toml"),
        pytest.param("pyproject.toml", POETRY, ["pandas"], id="poetry"),
        pytest.param("pyproject.toml", "[tool.ruff]\nline-length = 100\n", [], id="tools alone"),
        pytest.param("pyproject.toml", "= no TOML", [], id="damaged"),
        pytest.param("pyproject.toml", "project = 1\n[tool]\npoetry = 2\n", [], id="strange"),
        pytest.param("setup.py", "numpy", [], id="another file"),
    ],
)  # fmt: skip
def test_packages_are_those_that_the_files_name(file: str, text: str, names: list[str]) -> None:
    assert declared_requirements({file: text}) == dict.fromkeys(names, file)


def test_a_package_that_is_not_installed_is_missing_however_it_is_written() -> None:
    declared = declared_requirements({"requirements.txt": TXT})
    installed = ["numpy", "Torch.Vision", "ruamel.yaml"]
    assert missing_packages(declared, installed) == ["scikit-learn"]
