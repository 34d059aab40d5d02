"""What the pages say is what there is, and works; the sample for nginx is in test_router.py."""

import json
import re
import shlex
import shutil
import subprocess

import pytest
from flask import Flask
from serving import PROFILES, ROOT, Person, wait_until

from app import HTTP_CODES, create_app
from config import NUMBERS, load
from errors import STATUSES
from validators import BOUNDED_FIELDS, CATALOGUE, parse_date

LINES = {"README": 120, "API": 160, "OPERATING": 200, "CONTRIBUTING": 100}
PAGES = {name: (ROOT / f"{name}.md").read_text() for name in [*LINES, "CHANGELOG"]}
README, API, OPERATING, CONTRIBUTING, CHANGELOG = PAGES.values()
CODE = {path.name: path.read_text() for path in ROOT.glob("*.py")}
TOLD = {"SILENT_SECONDS": "up after {} seconds", "keepalive": "kept for {} seconds"}
TOLD |= {"LOCK_SECONDS": "wait for {} seconds", "LONGEST_PAGE": "Up to `limit={}`"}
TOLD |= {"threads": "`WEB_CONCURRENCY` × {}, and"}
quoted = re.compile("`([^`]+)`").findall


def rows_of(page, title):
    """The rows of the tables below a heading, each as its cells, of which one has code."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [row[2:-2].split(" | ") for row in re.findall(r"(?m)^\| .*`.*", section)]


def blocks(text):
    """The indented blocks, without their indentation."""
    found = re.findall(r"(?m)(?:^    .*\n(?:\n(?=    ))?)+", text)
    return [re.sub("(?m)^    ", "", block) for block in found]


def test_size_links_and_numbers():
    assert [
        name for name, most in LINES.items() if PAGES[name].count("\n") > most
    ] == []
    assert sum(len(PAGES[name].split()) for name in LINES) <= 5_100
    assert (ROOT / "docs.png").stat().st_size <= 100_000
    links = re.findall(r"\]\(([^)]+)\)", "".join(PAGES.values()))
    assert [link for link in links if not (ROOT / link).exists()] == []
    for name, told in TOLD.items():
        number = re.search(rf"(?m)^{name} = ([0-9_]+)", "".join(CODE.values()))[1]
        assert told.format(number.replace("_", "")) in API + OPERATING
    version = json.loads((ROOT / "openapi.json").read_text())["info"]["version"]
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\n## {version}\n" in CHANGELOG


def test_settings_fields_dates_and_codes():
    listed = {
        name: row for row in rows_of(README, "Settings") for name in quoted(row[0])
    }
    assert {*listed} == {
        *NUMBERS,
        "APPID",
        "DATABASE_URL",
        "USER_PROFILE_FIELDS",
        "PORT",
    }
    for name in {*listed} - {"PORT", "WEB_CONCURRENCY"}:
        assert load({name: listed[name][1].strip("`")}) == load({})
    listed = rows_of(API, "Fields")
    assert sorted(name for row in listed for name in quoted(row[0])) == sorted(
        CATALOGUE
    )
    for names, _, stored in listed:
        properties = [CATALOGUE[name].property for name in quoted(names)]
        assert (quoted(stored) or quoted(names))[: len(properties)] == properties
    texts = [text for row in rows_of(API, "Dates") for text in quoted(row[0])]
    assert {text: parse_date(text) for text in texts} == dict.fromkeys(
        texts, "1950-01-31"
    )
    names = [*CATALOGUE, "profileid", "accountid", "limit", "offset"]
    names += [f"{name}-length" for name in BOUNDED_FIELDS]
    codes = {
        *STATUSES,
        *HTTP_CODES.values(),
        "bad-request",
        *(f"invalid-{n}" for n in names),
    }
    codes |= {*re.findall(r'ServiceError\("([a-z-]+)"', "".join(CODE.values()))}
    found = [text for _, text in rows_of(API, "Errors") for text in quoted(text)]
    assert {text for text in found if re.fullmatch("[a-z]+(-[a-z]+)+", text)} == codes


def test_commands_endpoints_rooms_and_inner_names(app):
    described = {}
    for line, _ in rows_of(README, "Commands"):
        _, name, *rest = quoted(line)[0].split(maxsplit=2)
        words = re.findall(r"--[a-z]+|[A-Z_]{2,}(?!\w*\])", " ".join(rest))
        described[name] = {word.lower() for word in words}
    taken = {
        name: {p.opts[0] for p in each.params}
        for name, each in app.cli.commands.items()
    }
    assert described == taken
    for command in ("flask demo && flask run", "pytest"):
        assert f"\n    pip install -r requirements.txt && {command}\n" in README
    for rule in {rule.rule for rule in app.url_map.iter_rules()} - {
        "/docs/<path:path>"
    }:
        assert f" {rule}" in API
    names = [quoted(row[0])[0] for row in rows_of(CONTRIBUTING, "The rooms")]
    assert sorted(names) == sorted(CODE)
    for index, name in enumerate(names):
        imports = re.findall(r"(?m)^ *(?:from|import) (\w+)", CODE[name])
        assert {f"{each}.py" for each in imports} & {
            *names[: index + 1],
            "app.py",
        } == set(), name
    for _, inner, file in rows_of(CONTRIBUTING, "Inner names of libraries"):
        assert [
            n
            for n in quoted(inner)
            if not re.search(rf"\b{n}\b", CODE[file.strip("`")])
        ] == []


def test_samples_in_python(database_url, monkeypatch, capsys):
    monkeypatch.setenv("DATABASE_URL", database_url)
    use, mount = (each for each in blocks(README) if "import" in each)
    exec(use, {})
    assert "'fullName': 'Ada King'" in capsys.readouterr().out
    host = Flask("host")
    exec(mount, {"host": host})
    person = Person(create_app(), administrator=True)
    person.client = host.test_client()
    (sample,) = (json.loads(each) for each in blocks(API) if each.startswith("{"))
    assert list(person.get(f"/profiles{PROFILES}?limit=1").json[0]) == list(sample)
    assert person.get("/profiles/docs/").status_code == 200


def test_files_for_systemd_and_cron(tmp_path):
    (commands,) = (each for each in blocks(OPERATING) if "[Unit]" in each)
    subprocess.run(["bash", "-n"], input=commands, text=True, check=True)
    unit, cron = re.findall(r"(?s)<<'END'\n(.*?)END\n", commands)
    assert re.fullmatch(
        r"(\S+ ){5}profiles cd /srv/profiles && .*/flask purge-sessions .*\n", cron
    )
    if shutil.which("systemd-analyze"):
        file = tmp_path / "p@.service"
        file.write_text(re.sub("ExecStart=.*gunicorn", "ExecStart=/bin/sh", unit))
        subprocess.run(["systemd-analyze", "verify", file], check=True)


def test_the_lines_of_the_demo_and_the_questions_to_the_log(
    serve, make_app, database_url
):
    service = serve(database_url, APPID="demo")
    demo = make_app(APPID="demo").test_cli_runner().invoke(args=["demo"]).stdout
    lines = re.findall("(?m)^curl .*$", re.sub(r":\d+/", f":{service.port}/", demo))
    output = [
        json.loads(subprocess.check_output([*shlex.split(line), "-s"]))
        for line in lines
    ]
    assert (output[0]["fullName"], output[1]["accountid"]) == (
        "Ada King",
        output[0]["accountid"],
    )
    assert [output[2][0]["object"], output[3][0]["object"]] == ["session", "profile"]
    (sample,) = re.findall("(?m)^    (time=.*)$", OPERATING)
    line = wait_until(
        lambda: re.findall(f"(?m)^time=.* path={PROFILES} .*$", service.log())
    )[0]
    assert re.findall("([a-z_]+)=", line) == re.findall("([a-z_]+)=", sample)
    slow = re.sub(" ms=[0-9]+ ", " ms=1000 ", line)
    failed = line.replace(
        " status=200 code=- ", " status=503 code=database-unavailable "
    )
    log = service.log_file.with_name("log")
    log.write_text("\n".join([line, slow, failed, sample, ""]))
    questions = re.findall("(?m)^    (grep .*)$", OPERATING)
    answers = [
        subprocess.check_output(q, shell=True, text=True, cwd=log.parent)
        for q in questions
    ]
    assert answers[0] == answers[2] == f"{sample}\n"
    assert answers[1].split() == ["1", "status=503", "code=database-unavailable"]
    assert answers[3].split() == ["1", f"path={PROFILES}"]
    assert answers[4].split() == ["1", "client=203.0.113.7", "3", "client=127.0.0.1"]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("jq"), reason="apt-get install jq to run it")
def test_the_lines_of_the_api(serve, empty_database_url):
    service = serve(empty_database_url)
    script = "".join(each for each in blocks(API) if "curl" in each)
    options = {
        "env": service.environment | {"FLASK_RUN_PORT": str(service.port)},
        "cwd": ROOT,
    }
    output = subprocess.check_output(["bash", "-ec", script], text=True, **options)
    updated, profiles, sessions = map(json.loads, output.splitlines())
    assert (updated["fullName"], profiles, len(sessions)) == (
        "Ada Lovelace",
        [updated],
        2,
    )
