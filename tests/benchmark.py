"""Measures the service beside a bare Flask app; needs Linux and wrk. See --help."""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from flask import Flask, jsonify, request
from peewee import Database
from playhouse.db_url import connect

ROOT = Path(__file__).resolve().parent.parent
SMALL, LARGE = 10_000, 2_000_000
ACCOUNTS, OWN, BATCH = 3_000, 300, 3_000
"""Owners of the profiles, profiles of the user that updates them, profiles in one insert."""
APPID = "benchmark"
LISTING = "/api/administrator/profiles"
UPDATE = "/api/user/update-profile"
CREATE = "/api/user/create-profile"
FORM = "contact-email=ada.lovelace%40example.com&full-name=Ada+Lovelace"
LUA = """\
wrk.method, wrk.body = "{method}", "{body}"
wrk.headers["Authorization"] = "Bearer {token}"
if wrk.body ~= "" then wrk.headers["Content-Type"] = "application/x-www-form-urlencoded" end
local made, turn = {{}}, 0
function init()
  for path in ("{paths}"):gmatch("%S+") do made[#made + 1] = wrk.format(nil, path) end
end
function request()
  turn = turn % #made + 1
  return made[turn]
end
function done(summary, latency)
  local e = summary.errors
  print("DONE", e.connect + e.read + e.write + e.timeout, e.status, summary.requests,
    summary.duration, latency:percentile(50), latency:percentile(99))
end
"""


def bare() -> Flask:
    """What Flask and gunicorn cost by themselves; gunicorn imports it from this file."""
    app = Flask(__name__)

    @app.get("/health")
    def get():
        return jsonify(object="health", status="ok")

    @app.patch("/")
    def patch():
        return jsonify(request.form.to_dict())

    @app.post("/")
    def post():
        return jsonify(request.form.to_dict()), 201

    return app


shown: set[str] = set()


def progress(text: str, part: float = 0) -> None:
    """On stderr: a bar on a terminal, elsewhere one line for each step."""
    if sys.stderr.isatty():
        bar = f"[{'#' * int(24 * part):<24}] {text}"
        print(f"\r\033[K{bar}", end="", file=sys.stderr, flush=True)
    elif text not in shown:
        print(text.strip(), file=sys.stderr, flush=True)
    shown.add(text)


# The databases


@contextmanager
def own_database(url: str, folder: Path) -> Iterator[str]:
    """The URL of a new database, in the folder or on the URL's server; dropped at the end."""
    name, parts = f"bench_{token_hex(4)}", urlsplit(url)
    if parts.scheme == "sqlite":
        yield f"sqlite:///{folder}/{name}.db"
        return
    server = peewee_database(parts._replace(path="/information_schema").geturl())
    server.execute_sql(f"CREATE DATABASE {name}")
    try:
        yield parts._replace(path=f"/{name}").geturl()
    finally:
        server.execute_sql(f"DROP DATABASE {name}")


def peewee_database(url: str) -> Database:
    """The database of the URL, for this process."""
    scheme, rest = url.split(":", 1)
    if scheme != "sqlite":  # the service takes more names and options than Peewee
        url = f"mysql:{rest.partition('?')[0]}"
    return connect(url, unquote_user=True, unquote_password=True)


def prepared(database_url: str, rows: int) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The service's environment, a session of an administrator, and one of the profiles' user."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).resolve().parent),  # where gunicorn finds bare()
        "DATABASE_URL": database_url,
        "APPID": APPID,
        "PAGE_SIZE": "10",
        "USER_PROFILE_FIELDS": "contact-email,full-name",
        "WEB_CONCURRENCY": "2",
    }
    sessions = []
    for options in (["--administrator"], []):
        progress("make the accounts")
        accountid = flask(environment, "create-account", *options)["accountid"]
        sessions.append(flask(environment, "create-session", accountid, "--duration", "86400"))
    fill(database_url, rows, sessions[1]["accountid"])
    return environment, *sessions


def flask(environment: dict[str, str], *command: str) -> dict[str, str]:
    """The JSON that a flask command prints last."""
    line = [sys.executable, "-m", "flask", *command]
    done = subprocess.run(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def fill(database_url: str, rows: int, user: str) -> None:
    """Store the profiles, a millisecond apart until now; some are the user's."""
    # Imported here, so that the bare app's process holds nothing of the service.
    from models import Profile

    database = peewee_database(database_url)
    first, own = time.time_ns() - rows * 1_000_000, set(own_numbers(rows))
    with Profile.bind_ctx(database), database.connection_context():
        for start in range(0, rows, BATCH):
            progress(f"fill {rows:,} profiles", start / rows)
            numbers = range(start, min(start + BATCH, rows))
            batch = [profile(n, first + n * 1_000_000, user if n in own else None) for n in numbers]
            with database.atomic():
                Profile.insert_many(batch).execute()


def profile(number: int, moment: int, user: str | None) -> dict[str, str | int]:
    """A row, made at that nanosecond, of the user or of one of the other accounts."""
    made = datetime.fromtimestamp(moment / 1e9, UTC).isoformat(timespec="milliseconds")[:23] + "Z"
    return {
        "id": moment,
        "profileid": scattered("prof", number),
        "appid": APPID,
        "accountid": user or scattered("acct", number % ACCOUNTS),
        "fullName": f"Augusta Ada Lovelace {number}",
        "contactEmail": f"ada.lovelace.{number}@example.com",
        "createdAt": made,
        "updatedAt": made,
    }


def own_numbers(rows: int) -> range:
    """The numbers of the user's profiles, some OWN of them, evenly spread over all."""
    return range(0, rows, max(rows // OWN, 1))


def scattered(prefix: str, number: int) -> str:
    """The identifier of a number, as random to an index as the service's own; none comes twice."""
    return f"{prefix}_{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


# The servers


class Server(NamedTuple):
    """A running gunicorn."""

    port: int
    pid: int
    started: float  # seconds until its first answer

    def workers(self) -> list[str]:
        """The /proc folders of the workers."""
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [f"/proc/{pid}" for pid in sorted(pids, key=int)]

    def memory(self, field: str) -> list[float]:
        """A field of each worker's status, in MiB."""
        texts = [Path(f"{worker}/status").read_text() for worker in self.workers()]
        return [int(re.search(rf"{field}:\s+(\d+) kB", text)[1]) / 1024 for text in texts]


@contextmanager
def served(environment: dict[str, str], folder: Path, app: str = "") -> Iterator[Server]:
    """The Procfile's web process, of another app if one is given, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log, began = folder / f"{port}.log", time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            web_command(app),
            cwd=ROOT,
            env={**environment, "PORT": str(port)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_up(process, port, log)
        yield Server(port, process.pid, time.perf_counter() - began)
        process.terminate()
        process.wait(40)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def web_command(app: str) -> list[str]:
    """The web line of the Procfile, with another app if one is given."""
    text = (ROOT / "Procfile").read_text()
    words = shlex.split(re.search(r"^web:(.*)$", text, re.MULTILINE)[1])
    place = next(n for n, word in enumerate(words) if word.startswith("app:"))
    return [*words[:place], app or words[place], *words[place + 1 :]]


def wait_until_up(process: subprocess.Popen, port: int, log: Path) -> None:
    """Wait until /health is well. Raises SystemExit with the log when it does not come to that."""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port, timeout=10)) as client:
            client.request("GET", "/health")
            if client.getresponse().status == 200:
                return
        time.sleep(0.01)
    raise SystemExit(f"gunicorn did not start:\n{log.read_text()}")


# The measurements


class Load(NamedTuple):
    """A request that wrk repeats, over the paths in turn, from clients that keep connections."""

    server: Server
    paths: list[str]
    token: str
    method: str = "GET"
    body: str = ""
    clients: int = 8


class Run(NamedTuple):
    """What wrk saw in one run: requests per second, and µs."""

    rate: float
    p50: float
    p99: float


Loads = dict[str, Load]
Runs = dict[str, list[Run]]


def wrk(load: Load, seconds: int, folder: Path) -> Run:
    """Send the load. Raises SystemExit if any answer is an error or missing."""
    script = folder / "load.lua"
    script.write_text(LUA.format(**{**load._asdict(), "paths": " ".join(load.paths)}))
    options = ["-t1", f"-c{load.clients}", f"-d{seconds}s", "--latency", "-s", str(script)]
    command = ["wrk", *options, f"http://127.0.0.1:{load.server.port}"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    result = output.splitlines()[-1].split() if output else []
    if result[:3] != ["DONE", "0", "0"] or result[3] == "0":
        raise SystemExit(f"\n{load.method} {load.paths[0]} failed:\n{output}")
    requests, microseconds, p50, p99 = map(float, result[3:])
    return Run(requests / microseconds * 1e6, p50, p99)


def run_rounds(loads: Loads, options: argparse.Namespace, folder: Path) -> Runs:
    """Each load in turn, in several rounds, so that a drift of the machine meets them all."""
    runs: Runs = {name: [] for name in loads}
    for number in range(options.rounds):
        for place, (name, load) in enumerate(loads.items()):
            part = (number + place / len(loads)) / options.rounds
            progress(f"round {number + 1} of {options.rounds}: {name}", part)
            runs[name].append(wrk(load, options.seconds, folder))
    return runs


def all_loads(service: Server, other: Server, sessions: list[dict[str, str]], rows: int) -> Loads:
    """The requests of the table by their names, each beside what it is compared with."""
    administrator, user = sessions
    update = [f"{UPDATE}?profileid={scattered('prof', n)}" for n in own_numbers(rows)]
    create = [f"{CREATE}?accountid={user['accountid']}"]
    get = Load(service, [LISTING], administrator["token"])
    patch = Load(service, update, user["token"], "PATCH", FORM)
    post = Load(service, create, user["token"], "POST", FORM)
    return {
        "bare GET": get._replace(server=other, paths=["/health"]),
        "list": get,
        "list, 64 clients": get._replace(clients=64),
        "half-way": get._replace(paths=[f"{LISTING}?after={scattered('prof', rows // 2)}"]),
        "bare PATCH": patch._replace(server=other, paths=["/"]),
        "update": patch,
        "bare POST": post._replace(server=other, paths=["/"]),
        "create": post,
    }


def read_all(client: HTTPConnection, token: str) -> Iterator[bytes]:
    """The body of an ``all``, in chunks."""
    client.request("GET", f"{LISTING}?all=true", headers={"Authorization": f"Bearer {token}"})
    response = client.getresponse()
    if response.status != 200:
        raise SystemExit(f"\nall failed: {response.status} {response.read().decode()}")
    while chunk := response.read(65_536):
        yield chunk


def peak_growth(server: Server, token: str, rows: int) -> float:
    """MiB that the peak memory of a worker grows by in an ``all``, which is seen to be whole."""
    before = server.memory("VmHWM")
    for number in range(4):  # a connection each, so that both workers have their share
        progress("all, for its memory", number / 4)
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=600)) as client:
            count = b"".join(read_all(client, token)).count(b'"profileid"')
        if count != rows:
            raise SystemExit(f"\nall answered {count} profiles of {rows}")
    after = server.memory("VmHWM")
    return max(late - early for early, late in zip(before, after, strict=True))


def seconds_of_all(server: Server, token: str) -> float:
    """The median time of an ``all`` on a connection kept open."""
    times = []
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=600)) as client:
        for number in range(5):
            progress("all, for its time", number / 5)
            began = time.perf_counter()
            for _ in read_all(client, token):
                pass
            times.append(time.perf_counter() - began)
    return median(times)


# The table


class Row(NamedTuple):
    """A line of the table; the goals are SQLite's and MySQL's."""

    name: str
    plain: str
    result: float | None = None
    sense: str = ""
    goals: tuple[float, ...] = ()

    def text(self, engine: int) -> str:
        """The line, with the goal of that engine."""
        if self.result is None:
            return f"{self.name:<42}{self.plain}"
        goal = self.goals[engine]
        met = self.result >= goal if self.sense == "≥" else self.result <= goal
        shown = f"{self.result:,.0f}" if self.result > 1000 else f"{self.result:.2f}"
        wanted = f"{self.sense} {goal:,}"
        return f"{self.name:<42}{self.plain:<38}{shown:>9}  {wanted:<10} {'yes' if met else 'NO'}"


def compared(name: str, runs: Runs, above: str, below: str, sense: str, *goals: float) -> Row:
    """The line of the requests per second of one load over those of another."""
    rates = [[run.rate for run in runs[load]] for load in (above, below)]
    plain = " / ".join(f"{median(each):,.0f} ({min(each):,.0f})" for each in rates)
    ratios = [one.rate / two.rate for one, two in zip(runs[above], runs[below], strict=True)]
    return Row(name, f"{plain} req/s", median(ratios), sense, goals)


def steady(name: str, runs: list[Run]) -> Row:
    """The line of the worst round of a load over its best."""
    worst, best = min(run.rate for run in runs), max(run.rate for run in runs)
    return Row(name, f"{worst:,.0f} / {best:,.0f} req/s", worst / best, "≥", (0.8, 0.8))


def load_rows(runs: Runs) -> list[Row]:
    """The lines that wrk's runs make."""
    p50, p99 = (median(getattr(run, name) for run in runs["update"]) for name in ("p50", "p99"))
    tail = median(run.p99 / run.p50 for run in runs["update"])
    return [
        compared("list 10 profiles / bare GET", runs, "list", "bare GET", "≥", 0.65, 0.33),
        compared("update-profile / bare PATCH", runs, "update", "bare PATCH", "≥", 0.42, 0.3),
        compared("create-profile / bare POST", runs, "create", "bare POST", "≥", 0.36, 0.3),
        Row("update-profile, p99 / p50", f"{p99:,.0f} / {p50:,.0f} µs", tail, "≤", (4, 4)),
        steady("list, worst round / best", runs["list"]),
        steady("list of 64 clients, worst round / best", runs["list, 64 clients"]),
        compared("first page / page half-way down", runs, "list", "half-way", "≤", 1.25, 1.25),
    ]


def large_row(options: argparse.Namespace, folder: Path) -> Row:
    """The line of the first page of a large table beside that of a small one."""
    name = f"first page of {SMALL:,} / {LARGE:,}"
    if not options.large:
        return Row(name, "give --large for it (fills two more databases)")
    with ExitStack() as stack:
        loads = {}
        for rows in (SMALL, LARGE):
            url = stack.enter_context(own_database(options.database_url, folder))
            environment, administrator, _ = prepared(url, rows)
            server = stack.enter_context(served(environment, folder))
            loads[f"first page of {rows:,}"] = Load(server, [LISTING], administrator["token"])
        runs = run_rounds(loads, options, folder)
    return compared(name, runs, *loads, "≤", 1.25, 1.25)


def service_rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """The other lines."""
    with ExitStack() as stack:
        url = stack.enter_context(own_database(options.database_url, folder))
        environment, *sessions = prepared(url, options.rows)
        starts = [start_seconds(environment, folder) for _ in range(2)]
        service = stack.enter_context(served(environment, folder))
        other = stack.enter_context(served(environment, folder, "benchmark:bare()"))
        loads = all_loads(service, other, sessions, options.rows)
        for name, load in loads.items():
            if name != "create":  # it would add to the rows that all answers
                progress(f"warm up: {name}")
                wrk(load, 1, folder)
        whole = rows_of_all(service, sessions[0]["token"], options.rows)
        rows = [*load_rows(run_rounds(loads, options, folder)), *whole]
        start, memory = median([*starts, service.started]), max(service.memory("VmRSS"))
    rows.append(Row("start, to the first answer", f"{start:.2f} s"))
    return [*rows, Row("memory of a worker after all this", f"{memory:.0f} MiB")]


def rows_of_all(service: Server, token: str, rows: int) -> list[Row]:
    """The lines of ``all``, whose memory is measured before the workers have grown by it."""
    growth, seconds = peak_growth(service, token, rows), seconds_of_all(service, token)
    plain = f"{rows:,} in {seconds:.2f} s"
    return [
        Row("all, rows per second", plain, rows / seconds, "≥", (200_000, 60_000)),
        Row("all, growth of a worker's peak", f"{growth:.2f} MiB", growth, "≤", (16, 16)),
    ]


def start_seconds(environment: dict[str, str], folder: Path) -> float:
    """How long the service takes to its first answer."""
    progress("start")
    with served(environment, folder) as server:
        return server.started


def arguments() -> argparse.Namespace:
    """The options of the command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = "where a new database is made and dropped: a server, or a file's folder (default: %s)"
    numbers = {
        "rows": (100_000, "profiles in the database"),
        "seconds": (3, "of each run of wrk"),
        "rounds": (3, "of all the runs; the median of their ratios counts"),
    }
    parser.add_argument("--database-url", default="sqlite:///", help=where % "temporary SQLite")
    for name, (default, text) in numbers.items():
        text = f"{text} (default: {default:,})"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    large = f"also compare a table of {LARGE:,} profiles with one of {SMALL:,}"
    parser.add_argument("--large", action="store_true", help=large)
    options = parser.parse_args()
    if min(options.rows, options.seconds, options.rounds) < 1:
        parser.error("--rows, --seconds and --rounds are at least 1")
    return options


def main() -> None:
    """Measure, and print the table."""
    options = arguments()
    if not shutil.which("wrk"):
        print("wrk is not installed: apt-get install wrk", file=sys.stderr)
        sys.exit(2)
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit("ended by a signal"))  # through every finally
    sys.path.insert(0, str(ROOT))
    url = urlsplit(options.database_url)
    mysql, path = url.scheme != "sqlite", Path(unquote(url.path[1:]))
    with TemporaryDirectory(dir=None if mysql or not path.name else path.parent) as name:
        folder = Path(name).resolve()
        rows = service_rows(options, folder)
        rows.insert(7, large_row(options, folder))  # after the other pages
    progress("done\n", 1)
    print(f"{'MySQL' if mysql else 'SQLite'}, {options.rows:,} profiles, {options.rounds} rounds")
    print(f"\n{'':<42}{'median (worst) round':<38}{'result':>9}  {'goal':<10} met")
    for row in rows:
        print(row.text(mysql))


if __name__ == "__main__":
    main()
