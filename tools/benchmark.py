"""Measures this version beside another one, such as a worktree of the last commit.

python tools/benchmark.py ../before [--mysql]    # on the server of TEST_MYSQL_URL

Needs wrk.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), f"{ROOT}/tests"]

from databases import driver, new_database  # noqa: E402
from serving import (  # noqa: E402
    CREATE,
    FORM,
    PROFILES,
    UPDATE,
    Person,
    Served,
    procfile,
)

from models import Profile, timestamp  # noqa: E402

ROWS = 100_000
OWN = 333  # every 333rd profile is the user's
SMALL = 2_000  # the rows of the application whose every row is listed
START = time.time_ns() - (ROWS + SMALL) * 10**6
ROUNDS = 7
SECONDS = 3
BODY = "contact-email=ada.lovelace%40example.com&full-name=Ada+Lovelace"
LUA = """
wrk.method = "{method}"
wrk.body = "{body}"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.headers["X-Appid"] = "{appid}"
wrk.headers["Content-Type"] = "{type}"
local requests = {{}}
local turn = 0
function init()
  for path in ("{paths}"):gmatch("%S+") do
    table.insert(requests, wrk.format(nil, path))
  end
end
function request()
  turn = turn % #requests + 1
  return requests[turn]
end
"""
UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}


def scattered(prefix, number):
    """An identifier of the number, as random to an index as the service's own."""
    return f"{prefix}_{number * 0x9E3779B97F4A7C15 % 2**64:016x}"


def profile(number, appid, accountid):
    """A row, a millisecond newer than that of the number before."""
    moment = START + number * 10**6
    row = dict.fromkeys(Profile._meta.sorted_field_names)
    return row | {
        "id": moment,
        "profileid": scattered("prof", number),
        "appid": appid,
        "accountid": accountid,
        "fullName": f"Augusta Ada Lovelace {number}",
        "contactEmail": "ada@example.com",
        "createdAt": timestamp(moment),
        "updatedAt": timestamp(moment),
    }


def store(url, rows):
    """Store profiles, each a dictionary of all columns."""
    names = Profile._meta.sorted_field_names
    with driver(url) as (cursor, mark):
        marks = ", ".join([mark] * len(names))
        insert = f"INSERT INTO profile ({', '.join(names)}) VALUES ({marks})"
        cursor.execute("BEGIN")
        cursor.executemany(insert, [tuple(row[name] for name in names) for row in rows])
        cursor.execute("COMMIT")


def profiles(user):
    """The rows of the user and of 3,000 accounts, and those of a small application."""
    for number in range(ROWS):
        accountid = scattered("acct", number % 3_000)
        if number % OWN == 0:
            accountid = user.accountid
        yield profile(number, user.appid, accountid)
    for number in range(ROWS, ROWS + SMALL):
        yield profile(number, "small", scattered("acct", number))


def load(person, method, *paths):
    return LUA.format(
        method=method,
        body="" if method == "GET" else BODY,
        token=person.token,
        appid=person.appid,
        type=FORM,
        paths=" ".join(paths),
    )


def make_loads(service, url):
    """Fill the service's database; return what wrk sends for each load."""
    user = Person(service)
    administrator = Person(service, administrator=True)
    small = Person(service, administrator=True, appid="small")
    store(url, profiles(user))
    own = [scattered("prof", number) for number in range(0, ROWS, OWN)]
    updates = [f"{UPDATE}?profileid={profileid}" for profileid in own]
    return {
        "list": load(administrator, "GET", PROFILES),
        "update": load(user, "PATCH", *updates),
        "create": load(user, "POST", f"{CREATE}?accountid={user.accountid}"),
        "all": load(small, "GET", f"{PROFILES}?all=all"),
    }


def wrk(port, folder, load):
    """The requests per second of 8 clients, and p99 / p50 of an answer's time."""
    script = folder / "load.lua"
    script.write_text(load)
    options = ["-t1", "-c8", f"-d{SECONDS}s", "--latency", "-s", script]
    command = ["wrk", *options, f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = done.stdout
    assert not re.search("Socket errors|Non-2xx", text), text
    found = re.findall(r"(?:50|99)%\s+([0-9.]+)([mu]?s)", text)
    p50, p99 = [float(number) * UNITS[unit] for number, unit in found]
    rate = re.search(r"Requests/sec: +([0-9.]+)", text)[1]
    return float(rate), p99 / p50


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--mysql", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        versions = []
        for root in (options.other.resolve(), ROOT):
            url = f"sqlite:///{folder}/{len(versions)}.db"
            if options.mysql:
                url = stack.enter_context(new_database("mysql", folder))
            # Each version makes its own tables.
            command = [sys.executable, "-m", "flask", "init-db"]
            variables = os.environ | {"DATABASE_URL": url}
            subprocess.run(command, cwd=root, env=variables, check=True)
            service = Served(folder, url)
            loads = make_loads(service, url)
            stack.enter_context(service.start(*procfile("web", root), cwd=root))
            stack.callback(service.stop)
            service.wait_until_up()
            versions.append((service.port, loads))
        for name in loads:
            rates = {port: [] for port, _ in versions}
            tails = []
            for _ in range(ROUNDS):
                for port, loads in versions:
                    rate, tail = wrk(port, folder, loads[name])
                    rates[port].append(rate)
                tails.append(tail)  # of this version, which is the last one
            before, now = [median(each) for each in rates.values()]
            print(
                f"{name}: {now:.0f} / {before:.0f} = {now / before:.2f}; "
                f"p99 / p50 = {median(tails):.1f}"
            )


if __name__ == "__main__":
    main()
