"""What the pages say is so, and works. The sample for nginx is in test_router.py."""

import json
import re
import shlex
import shutil
import subprocess
from textwrap import dedent

import pytest
from flask import Flask
from serving import PROFILES, ROOT, Person, wait_until

from app import HTTP_CODES, create_app
from config import load
from errors import STATUSES
from validators import BOUNDED_FIELDS, CATALOGUE, parse_date


def read_page(name):
    return (ROOT / f"{name}.md").read_text()


LINES = {
    "README": 120,
    "API": 190,
    "OPERATING": 240,
    "EMBEDDING": 80,
    "CONTRIBUTING": 100,
}
README = read_page("README")
API = read_page("API")
OPERATING = read_page("OPERATING")
CONTRIBUTING = read_page("CONTRIBUTING")
CHANGELOG = read_page("CHANGELOG")
CODE = {file.name: file.read_text() for file in ROOT.glob("*.py")}
ALL_CODE = "".join(CODE.values())
quoted = re.compile("`([^`]+)`").findall


def rows_of(page, title):
    """The cells of each row of the tables below a heading that contains code."""
    section = page.split(f"\n## {title}\n")[1]
    section = section.partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (.*`.*) \|$", section)
    return [row.split(" | ") for row in rows]


def blocks(page, text):
    """The indented blocks that contain the text, without their indentation."""
    found = re.findall(r"(?m)(?:^    .*\n(?:\n(?=    ))?)+", page)
    return [dedent(block) for block in found if text in block]


def lines(text, beginning):
    """The lines with this beginning, a pattern, without their indentation."""
    return re.findall(rf"(?m)^ *({beginning}.*)$", text)


@pytest.mark.parametrize("name", LINES)
def test_pages_are_short(name):
    length = len(read_page(name).splitlines())
    most = LINES[name]
    assert length <= most, f"{name}.md has {length} lines, and may have {most}"


def test_all_pages_are_short():
    words = " ".join(map(read_page, LINES)).split()
    assert len(words) <= 5_900, f"they have {len(words)} words, and may have 5900"
    assert (ROOT / "docs.png").stat().st_size <= 100_000


def test_links():
    for name in [*LINES, "CHANGELOG"]:
        for link in re.findall(r"\]\(([^)]+)\)", read_page(name)):
            assert (ROOT / link).exists(), link


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("SILENT_SECONDS", "up after {} seconds"),
        ("keepalive", "kept for {} seconds"),
        ("LOCK_SECONDS", "wait for {} seconds"),
        ("threads", "`WEB_CONCURRENCY` × {}, and"),
    ],
)
def test_numbers(name, sentence):
    number = re.search(rf"(?m)^{name} = \(?\s*([0-9_]+)", ALL_CODE)[1]
    assert sentence.format(int(number)) in API + OPERATING


def test_version():
    description = json.loads((ROOT / "openapi.json").read_text())
    version = description["info"]["version"]
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\n## {version}\n" in CHANGELOG


def test_settings():
    defaults = {}
    for names, default, _ in rows_of(README, "Settings"):
        for name in quoted(names):
            defaults[name] = default.strip("`")
    settings = load({})
    assert defaults.keys() == settings.keys() - {"PROFILE_LENGTHS"}
    assert defaults.pop("PORT").startswith(str(settings["PORT"]))
    del defaults["WEB_CONCURRENCY"]
    for name, default in defaults.items():
        assert load({name: default}) == settings


def test_fields():
    listed = {}
    for cell, _, stored_as in rows_of(API, "Fields"):
        names = quoted(cell)
        listed |= zip(names, quoted(stored_as) or names, strict=False)
    properties = {name: field.property for name, field in CATALOGUE.items()}
    assert listed == properties


def test_dates():
    for cell, *_ in rows_of(API, "Dates"):
        for text in quoted(cell):
            assert parse_date(text) == "1950-01-31", text


def test_error_codes():
    names = [*CATALOGUE, "profileid", "accountid", "limit", "offset"]
    names += [f"{name}-length" for name in BOUNDED_FIELDS]
    codes = {*STATUSES, *HTTP_CODES.values(), "bad-request"}
    codes |= {f"invalid-{name}" for name in names}
    codes.update(re.findall(r'ServiceError\("([a-z-]+)"', ALL_CODE))
    listed = set()
    for _, cell in rows_of(API, "Errors"):
        listed.update(re.findall("`([a-z]+-[a-z-]+)`", cell))
    assert listed == codes


def test_commands(app):
    """Each with its options, and the names of its arguments in capitals."""
    described = {}
    for cell, _ in rows_of(README, "Commands"):
        _, name, *parameters = re.findall(r"[a-z-]{3,}|[A-Z_]+\b(?!\])", cell)
        described[name] = {each.lower() for each in parameters}
    for name, command in app.cli.commands.items():
        taken = {parameter.opts[0] for parameter in command.params}
        assert described.pop(name) == taken
    assert not described


@pytest.mark.parametrize("command", ["flask demo && flask run", "pytest"])
def test_lines_to_install(command):
    assert f"\n    pip install -r requirements.txt && {command}\n" in README


def test_endpoints(app):
    rules = {rule.rule for rule in app.url_map.iter_rules()}
    for rule in rules - {"/docs/<path:path>"}:
        assert f" {rule}" in API


def test_rooms():
    """Each file of the code is listed, and imports only from files below it."""
    rows = rows_of(CONTRIBUTING, "The rooms")
    names = [file.strip("`") for file, _, _ in rows]
    assert sorted(names) == sorted(CODE)
    above = {"app.py"}
    for name in names:
        above.add(name)
        imports = re.findall(r"(?m)^ *(?:from|import) (\w+)", CODE[name])
        assert above.isdisjoint(f"{module}.py" for module in imports), name


def test_samples_in_python(database_url, monkeypatch, capsys):
    monkeypatch.setenv("DATABASE_URL", database_url)
    page = read_page("EMBEDDING")
    (use,) = blocks(page, "create_profile(")
    (mount,) = blocks(page, "DispatcherMiddleware(")
    exec(use, {})
    assert "'fullName': 'Ada King'" in capsys.readouterr().out
    host = Flask("host")
    exec(mount, {"host": host})
    person = Person(create_app(), administrator=True)
    person.client = host.test_client()
    assert person.get("/profiles/docs/").status_code == 200
    (profile,) = person.get(f"/profiles{PROFILES}?limit=1").json
    (sample,) = blocks(API, '{"profileid"')
    assert list(profile) == list(json.loads(sample))


def test_files_for_systemd_and_cron(tmp_path):
    (commands,) = blocks(OPERATING, "[Unit]")
    subprocess.run(["bash", "-n"], input=commands.encode(), check=True)
    unit, cron = re.findall(r"(?s)<<'END'\n(.*?)END\n", commands)
    line = r"(\S+ ){5}profiles cd /srv/profiles && .*/flask purge-sessions .*\n"
    assert re.fullmatch(line, cron)
    if shutil.which("systemd-analyze"):
        file = tmp_path / "p@.service"
        file.write_text(re.sub("ExecStart=.*gunicorn", "ExecStart=/bin/sh", unit))
        subprocess.run(["systemd-analyze", "verify", file], check=True)


@pytest.fixture
def demo(serve, make_app, database_url):
    """The service, and its answers to the lines of the demo."""
    service = serve(database_url, APPID="demo")
    runner = make_app(APPID="demo").test_cli_runner()
    printed = runner.invoke(args=["demo"]).stdout
    answers = []
    for line in lines(printed.replace(":5000/", f":{service.port}/"), "curl"):
        answer = subprocess.check_output(shlex.split(f"{line} -s"))
        answers.append(json.loads(answer))
    return service, answers


def test_the_lines_of_the_demo(demo):
    _, (updated, created, sessions, profiles) = demo
    assert updated["fullName"] == "Ada King"
    assert created["accountid"] == updated["accountid"]
    assert sessions[0]["object"] == "session"
    assert profiles[0]["object"] == "profile"


def test_the_questions_to_the_log(demo, tmp_path):
    service, _ = demo
    (sample,) = lines(OPERATING, "time=")
    listing = f"time=.* path={PROFILES} "
    (line,) = wait_until(lambda: lines(service.log(), listing))
    names = re.compile("([a-z_]+)=")
    assert names.findall(line) == names.findall(sample)
    slow = re.sub(" ms=[0-9]+ ", " ms=1000 ", line)
    failed = line.replace("status=200 code=-", "status=503 code=database-unavailable")
    (tmp_path / "log").write_text(f"{line}\n{slow}\n{failed}\n{sample}\n")

    def ask(question):
        return subprocess.check_output(question, shell=True, text=True, cwd=tmp_path)

    answers = map(ask, lines(OPERATING, "grep"))
    request, failures, account, slow_paths, clients = answers
    assert request == f"{sample}\n"
    assert failures.split() == ["1", "status=503", "code=database-unavailable"]
    assert account == f"{sample}\n"
    assert slow_paths.split() == ["1", f"path={PROFILES}"]
    assert clients.split() == ["1", "client=203.0.113.7", "3", "client=127.0.0.1"]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("jq"), reason="apt-get install jq to run it")
def test_the_lines_of_the_api(serve, empty_database_url):
    service = serve(empty_database_url)
    script = "".join(blocks(API, "curl"))
    output = subprocess.check_output(
        ["bash", "-ec", script],
        env=service.environment | {"FLASK_RUN_PORT": str(service.port)},
        cwd=ROOT,
        text=True,
    )
    updated, profiles, sessions = map(json.loads, output.splitlines())
    assert updated["fullName"] == "Ada Lovelace"
    assert profiles == [updated]
    assert len(sessions) == 2
