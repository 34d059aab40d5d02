"""The README names every setting, code, command and file there is."""

import re

import pytest
from flask import Blueprint
from serving import ALL_FIELDS, ROOT

import blueprints
import config
from commands import commands
from errors import STATUSES
from validators import CATALOGUE

README = (ROOT / "README.md").read_text()


def test_settings():
    for name, default in {**config.DEFAULTS, "WEB_CONCURRENCY": "one per core, at most 4"}.items():
        rows = [row for row in README.splitlines() if row.startswith("| `") and name in row]
        assert rows and default in rows[0], f"the README's settings lack {name}"


def test_fields():
    table = "".join(row for row in README.splitlines() if row.startswith("|"))
    for name, row in CATALOGUE.items():
        assert f"`{name}`" in table and (name == row.property or f"`{row.property}`" in table)


def test_codes(make_app):
    described = make_app(USER_PROFILE_FIELDS=ALL_FIELDS).test_client().get("/openapi.json").json
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    contents = [answer["content"]["application/json"] for answer in answers]
    codes = {*STATUSES, *(code for content in contents for code in content.get("examples", []))}
    assert [code for code in sorted(codes) if f"`{code}`" not in README] == []
    assert len(codes) > 25


def test_commands(app):
    for name in (*app.cli.commands, *commands.cli.commands):
        assert f"`flask {name}" in README


def test_endpoints(app):
    described = app.test_client().get("/openapi.json").json["paths"]
    for rule in app.url_map.iter_rules():
        if rule.rule != "/docs/<path:path>":
            assert f" {rule.rule}" in README, f"the README's endpoints lack {rule.rule}"
        if rule.endpoint.split(".")[0] not in ("description", "swagger_ui"):
            assert rule.rule in described, f"the description lacks {rule.rule}"


@pytest.mark.parametrize("command", ["flask demo && flask run", "pytest"])
def test_the_two_commands(command):
    assert f"\n    pip install -r requirements.txt && {command}\n" in README


def test_a_file_imports_only_from_files_below_it():
    rows = [row.split("`")[1] for row in README.splitlines() if re.match(r"\| `[\w.]+\.py` ", row)]
    names = [row.removesuffix(".py") for row in rows]
    for index, row in enumerate(rows):
        imported = re.findall(r"^ *(?:from|import) (\w+)", (ROOT / row).read_text(), re.MULTILINE)
        above = set(names[: index + 1]) & set(imported)
        assert not above, f"{row} imports {above}"


def test_no_file_of_the_project_is_forgotten():
    """The section for maintainers says what each module is for."""
    for path in ROOT.glob("*.py"):
        assert f"`{path.name}`" in README


def test_no_blueprint_is_forgotten():
    made = [each for each in vars(blueprints).values() if isinstance(each, Blueprint)]
    assert set(made) == set(blueprints.BLUEPRINTS)
