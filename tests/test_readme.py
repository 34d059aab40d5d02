"""What the README, CONTRIBUTING.md and OPERATING.md say is what there is, and works."""

import json
import re
import shlex
import subprocess

from flask import Blueprint
from serving import ALL_FIELDS, ROOT, Person, wait_until

import app as factory
import blueprints
import config
from errors import STATUSES
from validators import CATALOGUE

README, CONTRIBUTING, OPERATING = (
    (ROOT / f"{name}.md").read_text() for name in ("README", "CONTRIBUTING", "OPERATING")
)


def table(text, title):
    """The rows of the first table below a heading, without its own; each a list of cells."""
    section = re.split(rf"(?m)^##+ {title}$", text)[1].split("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def quoted(cell):
    """The texts in backticks."""
    return re.findall("`([^`]+)`", cell)


def test_settings():
    rows = table(README, "Settings")
    names = [name for cells in rows for name in quoted(cells[0])]
    assert sorted(names) == sorted([*config.DEFAULTS, "PORT", "FORWARDED_ALLOW_IPS"])
    for name, default in {**config.DEFAULTS, "WEB_CONCURRENCY": "one per core, at most 4"}.items():
        (cells,) = [cells for cells in rows if f"`{name}`" in cells[0]]
        assert default in cells[1]


def test_fields():
    rows = table(README, "Bodies and fields")
    assert sorted(name for cells in rows for name in quoted(cells[0])) == sorted(CATALOGUE)
    for names, _, properties in rows:
        expected = [CATALOGUE[name].property for name in quoted(names)]
        same = expected == quoted(names) and properties == "the same name"
        assert same or quoted(properties)[: len(expected)] == expected


def test_codes(make_app):
    described = make_app(USER_PROFILE_FIELDS=ALL_FIELDS).test_client().get("/openapi.json").json
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    contents = [answer["content"]["application/json"] for answer in answers]
    codes = {*STATUSES, *(code for content in contents for code in content.get("examples", []))}
    codes |= set(factory.HTTP_CODES.values()) | {"bad-request"}
    for path in ROOT.glob("*.py"):
        codes |= set(re.findall(r'ServiceError\("([a-z-]+)"', path.read_text()))
    section = README.split("### Errors")[1].split("\n## ")[0]
    assert codes == {text for text in quoted(section) if re.fullmatch("[a-z]+(-[a-z]+)+", text)}


def test_dates(make_app):
    user = Person(make_app(USER_PROFILE_FIELDS="dob"))
    texts = [text for cells in table(README, "Dates") for text in quoted(cells[0])]
    stored = {text: user.create({"dob": text}).json.get("dob") for text in texts}
    assert stored == dict.fromkeys(texts, "1950-01-31")
    assert len(texts) > 15


def test_commands(app):
    """With every argument and every option."""
    described, taken = {}, {}
    for cells in table(README, "Commands"):
        _, name, *rest = quoted(cells[0])[0].split(maxsplit=2)
        words = re.findall(r"--[a-z]+|[A-Z_]{2,}(?!\w*\])", " ".join(rest))
        described[name] = {word.lower() for word in words}
    for name, command in app.cli.commands.items():
        taken[name] = {parameter.opts[0] for parameter in command.params}
    assert described == taken


def test_endpoints(app):
    for rule in {rule.rule for rule in app.url_map.iter_rules()} - {"/docs/<path:path>"}:
        assert f" {rule}" in README, f"the README's endpoints lack {rule}"


def test_the_two_commands():
    for command, text in ("flask demo && flask run", README), ("pytest", README + CONTRIBUTING):
        assert f"\n    pip install -r requirements.txt && {command}\n" in text


def test_a_file_imports_only_from_files_below_it():
    names = [quoted(cells[0])[0] for cells in table(CONTRIBUTING, "The rooms")]
    assert sorted(names) == sorted(path.name for path in ROOT.glob("*.py"))
    for index, name in enumerate(names):
        imports = re.findall(r"^ *(?:from|import) (\w+)", (ROOT / name).read_text(), re.MULTILINE)
        above = {f"{each}.py" for each in imports} & {*names[: index + 1], "app.py"}
        assert not above, f"{name} imports {above}"


def test_no_blueprint_is_forgotten():
    made = [each for each in vars(blueprints).values() if isinstance(each, Blueprint)]
    assert set(made) == set(blueprints.BLUEPRINTS)


def test_every_line_of_the_demo_works_and_so_does_every_question_to_the_log(
    serve, make_app, database_url, monkeypatch
):
    service = serve(database_url, APPID="demo")
    monkeypatch.setenv("FLASK_RUN_PORT", str(service.port))
    for _ in range(2):
        demo = make_app(APPID="demo").test_cli_runner().invoke(args=["demo"]).stdout
        lines = [line for line in demo.splitlines() if line.startswith("curl ")]
        update, create, sessions, profiles = [
            json.loads(subprocess.check_output([*shlex.split(line), "-s"])) for line in lines
        ]
        assert (update["object"], update["fullName"]) == ("profile", "Ada King")
        assert (create["object"], create["accountid"]) == ("profile", update["accountid"])
        assert [row["object"] for row in sessions[:2]] == ["session", "session"]
        assert [row["object"] for row in profiles] == ["profile", "profile"]

    section = OPERATING.split("## The log")[1].split("\n## ")[0]
    (sample,) = [line.strip() for line in section.splitlines() if line.startswith("    time=")]
    client, listing = "client=127.0.0.1", "path=/api/administrator/profiles"
    wait_until(lambda: service.log().count(f" {listing} ") == 2)  # written after the response
    logged = [line for line in service.log().splitlines() if line.startswith("time=")]
    line = next(line for line in logged if f" {listing} " in line)
    assert {tuple(re.findall("([a-z_]+)=", line)) for line in logged} == {
        tuple(re.findall("([a-z_]+)=", sample))
    }
    slow = re.sub(" ms=[0-9]+ ", " ms=1000 ", line)
    failed = re.sub(" status=200 code=- ", " status=503 code=database-unavailable ", line)
    (service.log_file.parent / "log").write_text("\n".join([*logged, slow, failed, sample, ""]))
    questions = [line.strip() for line in section.splitlines() if line.startswith("    grep ")]
    answers = [
        subprocess.check_output(question, shell=True, text=True, cwd=service.log_file.parent)
        for question in questions
    ]
    assert answers[0] == answers[2] == f"{sample}\n"
    assert answers[1].split() == ["1", "status=503", "code=database-unavailable"]
    assert answers[3].split() == ["1", listing]
    assert answers[4].split() == ["1", "client=203.0.113.7", str(len(logged) + 2), client]
