"""What the pages say is so, and works. The sample for nginx is in test_router.py."""

import json
import re
import shlex
import shutil
import subprocess
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from textwrap import dedent
from threading import Thread
from uuid import uuid4

import pytest
from flask import Flask
from serving import PROFILES, ROOT, SESSIONS, Person, wait_until
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from app import HTTP_CODES, create_app
from config import LENGTHS, load
from errors import STATUSES
from validators import CATALOGUE, parse_date


def read_page(name):
    return (ROOT / f"{name}.md").read_text()


LINES = {
    "README": 130,
    "docs/API": 240,
    "docs/OPERATING": 215,
    "docs/CONTRIBUTING": 75,
}
README = read_page("README")
API = read_page("docs/API")
OPERATING = read_page("docs/OPERATING")
CONTRIBUTING = read_page("docs/CONTRIBUTING")
CHANGELOG = read_page("CHANGELOG")
CODE = {file.name: file.read_text() for file in ROOT.glob("*.py")}
ALL_CODE = "".join(CODE.values())
quoted = re.compile("`([^`]+)`").findall


def rows_of(page, title):
    """The cells of each row of the tables below a heading that contains code."""
    rows = re.findall(r"(?m)^\| (.*`.*) \|$", section(page, title))
    return [row.split(" | ") for row in rows]


def section(page, title):
    """What stands below a heading."""
    return page.split(f"\n## {title}\n")[1].partition("\n## ")[0]


def anchors(page):
    """The names by which a code host links to headings."""
    titles = re.findall("(?m)^#+ (.+)$", page)
    return {
        re.sub("[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in titles
    }


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
    assert len(words) <= 5_600, f"they have {len(words)} words, and may have 5600"
    assert len(section(API, "In Python").splitlines()) <= 40
    assert (ROOT / "docs" / "page.png").stat().st_size <= 100_000


def test_links():
    for name in [*LINES, "CHANGELOG"]:
        file = ROOT / f"{name}.md"
        for link in re.findall(r"\]\(([^)]+)\)", file.read_text()):
            path, _, anchor = link.partition("#")
            target = file.parent / path
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("SILENT_SECONDS", "up after {} seconds"),
        ("keepalive", "kept for {} seconds"),
        ("LOCK_SECONDS", "wait for {} seconds"),
        ("threads", "`WEB_CONCURRENCY` × {} connections"),
    ],
)
def test_numbers(name, sentence):
    number = re.search(rf"(?m)^{name} = \(?\s*([0-9_]+)", ALL_CODE)[1]
    pages = " ".join((API + OPERATING).split())
    assert sentence.format(int(number)) in pages


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
    names = [*CATALOGUE, "profileid", "accountid", "limit", "offset", "duration"]
    names += [f"{name}-length" for name in LENGTHS]
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
    for rule in app.url_map.iter_rules():
        if rule.rule == "/docs/<path:path>":
            continue
        (method,) = rule.methods - {"HEAD", "OPTIONS"}
        request = f"`{method} {rule.rule}"
        assert request in API
        assert request in README or not rule.rule.startswith("/api/")


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


def test_sample_in_python(database_url, monkeypatch, capsys):
    monkeypatch.setenv("DATABASE_URL", database_url)
    (use,) = blocks(section(API, "In Python"), "create_profile(")
    exec(use, {})
    assert "'fullName': 'Ada King'" in capsys.readouterr().out
    host = Flask("host")
    host.wsgi_app = DispatcherMiddleware(host.wsgi_app, {"/profiles": create_app()})
    assert host.test_client().get("/profiles/docs/").status_code == 200


def test_samples_of_objects(administrator):
    """They have the properties of the real ones, in their order."""
    (sample,) = blocks(API, '{"profileid"')
    create = "/api/administrator/create-account"
    account = administrator.send("POST", create).json
    profile = administrator.create(
        {"full-name": "Ada King", "contact-email": "ada@example.com"}
    ).json
    (session,) = administrator.get(SESSIONS).json
    decoder = json.JSONDecoder()
    for found in (profile, account, session):
        sample = sample.strip()
        expected, end = decoder.raw_decode(sample)
        assert list(found) == list(expected)
        sample = sample[end:]
    assert not sample.strip()


@pytest.fixture
def life(monkeypatch):
    """Runs the sample in Python of a user's life; returns its names."""
    requests = pytest.importorskip(
        "requests", reason="pip install -r tests/requirements.txt to run it"
    )
    (sample,) = blocks(section(API, "The life of a user"), "import os, requests")

    def run(url, token):
        monkeypatch.setenv("PROFILES_URL", url)
        monkeypatch.setenv("PROFILES_TOKEN", token)
        exec(sample, names)
        return names

    names = {"http": requests}
    yield run
    names["http"].close()


def test_the_life_of_a_user(life, serve, empty_database_url):
    service = serve(empty_database_url)
    administrator = Person(service, administrator=True)
    names = life(f"http://127.0.0.1:{service.port}", administrator.token)
    id = str(uuid4())
    user = names["User"](id)
    assert user.show() is None
    made = user.save({"full-name": "Ada King", "contact-email": "ada@example.com"})
    assert user.show() == made
    assert user.sign_out_everywhere() == 1
    before = user.token
    changed = {"full-name": "Ada Lovelace", "contact-email": "ada@example.com"}
    saved = user.save(changed)
    assert user.token != before
    assert administrator.profiles() == [saved]
    assert saved["fullName"] == "Ada Lovelace"
    again = names["User"](id)
    assert again.id == user.id
    with pytest.raises(OSError, match="400"):
        again.save({})
    user.delete()
    again.delete()
    assert administrator.profiles() == []


@contextmanager
def failing_service(requests):
    """Its port. It loses its first answer; then it is away; then it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            requests.append((self.path, self.headers["Idempotency-Key"]))
            if len(requests) == 1:
                return
            self.send_response(503 if len(requests) == 2 else 201)
            self.send_header("Retry-After", "2")
            self.end_headers()
            self.wfile.write(b'{"accountid": "acct_9b1d4e6f8a2c7035", "token": ""}')

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_the_life_of_a_user_beside_failures(life, monkeypatch):
    """A lost answer and a 503: the same request again, with its key."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    requests = []
    with failing_service(requests) as port:
        user = life(f"http://127.0.0.1:{port}", "token")["User"]("id")
    assert user.id == "acct_9b1d4e6f8a2c7035"
    assert requests[:3] == [("/api/administrator/create-account", "id")] * 3
    assert len(requests) == 4


def test_files_for_systemd_and_cron(tmp_path):
    (commands,) = blocks(OPERATING, "[Service]")
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
    request, failures, target, slow_paths, clients = answers
    assert request == f"{sample}\n"
    assert failures.split() == ["1", "status=503", "code=database-unavailable"]
    assert target == f"{sample}\n"
    assert slow_paths.split() == ["1", f"path={PROFILES}"]
    assert clients.split() == ["1", "client=203.0.113.7", "3", "client=127.0.0.1"]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("jq"), reason="apt-get install jq to run it")
def test_the_lines_of_the_api(serve, empty_database_url):
    service = serve(empty_database_url)
    (script,) = blocks(API, "curl")
    output = subprocess.check_output(
        ["bash", "-ec", script],
        env=service.environment | {"FLASK_RUN_PORT": str(service.port)},
        cwd=ROOT,
        text=True,
    )
    updated, profiles, sessions, end, deletion = map(json.loads, output.splitlines())
    assert updated["fullName"] == "Ada Lovelace"
    assert profiles == [updated]
    assert len(sessions) == 1
    assert end == {"object": "end", "count": 1}
    accountid = updated["accountid"]
    expected = {"object": "deletion", "accountid": accountid}
    assert deletion == {**expected, "profiles": 1, "sessions": 1}
