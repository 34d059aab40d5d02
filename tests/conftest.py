"""The service on each database, each test in an application of its own."""

import json
import os
from contextlib import ExitStack
from secrets import token_hex

import pytest
from databases import new_database
from serving import Person, Served, close_connection

from app import create_app
from config import load

# The tests, and what they start, do not depend on what is set here.
SETTINGS = {"FORWARDED_ALLOW_IPS", "GUNICORN_CMD_ARGS", "SCRIPT_NAME", *load({})}
for name in [*os.environ]:
    if name in SETTINGS or name.startswith("FLASK_"):
        del os.environ[name]


@pytest.fixture(autouse=True)
def the_connection_of_the_test_is_closed():
    yield
    close_connection()


@pytest.fixture(scope="session", params=["sqlite", "mysql"])
def database_url(request, tmp_path_factory):
    """A database for the whole run."""
    with new_database(request.param, tmp_path_factory.mktemp("database")) as url:
        yield url


@pytest.fixture
def make_empty_database(database_url, tmp_path):
    """Makes databases of the same kind without a table; returns the URL of each."""
    kind = database_url.partition(":")[0]
    with ExitStack() as stack:
        yield lambda: stack.enter_context(new_database(kind, tmp_path))


@pytest.fixture
def empty_database_url(make_empty_database):
    """A database of the same kind without a table, for one test."""
    return make_empty_database()


@pytest.fixture
def make_app(database_url):
    """Makes the service, in an application of its own unless given another."""

    def make(**settings):
        return create_app(
            {"DATABASE_URL": database_url, "APPID": token_hex(8), **settings}
        )

    return make


@pytest.fixture
def app(make_app):
    """The service with two fields configured, as it comes; its context is pushed."""
    app = make_app()
    with app.app_context():
        yield app


@pytest.fixture
def user(app):
    return Person(app)


@pytest.fixture
def administrator(app):
    return Person(app, administrator=True)


@pytest.fixture
def command(app):
    """Runs a command; returns the object that it prints, or the line it fails with."""

    def invoke(*words):
        result = app.test_cli_runner().invoke(args=words)
        *before, line = result.output.splitlines()
        if result.exit_code:
            assert isinstance(result.exception, SystemExit)
            return line
        assert before == []
        return json.loads(line)

    return invoke


@pytest.fixture
def serve(tmp_path):
    """Starts the service by the Procfile's line; ends it with the test."""
    with ExitStack() as stack:

        def start(database_url, *, wait=True, **settings):
            service = Served(tmp_path, database_url, **settings)
            stack.enter_context(service.start())
            if wait:
                service.wait_until_up()
            return service

        yield start
