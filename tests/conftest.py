"""The fixtures: the service on each database, a user and an administrator of it."""

import os
from contextlib import ExitStack
from secrets import token_hex

import pytest
from service import ROOT, SERVER, Program, close_connection, new_database, run, sign_in

from app import create_app
from config import load
from database import db

# The tests, and what they start, do not depend on what is set here.
for name in {*os.environ}:
    if name in load({}) or name.startswith(("FLASK_", "GUNICORN_", "FORWARDED_")):
        del os.environ[name]


def pytest_collection_modifyitems(items):
    """Leave out the tests on MySQL when no server is named."""
    for item in [*items]:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "mysql" in values and not SERVER:
            items.remove(item)


def pytest_unconfigure(config):
    print("on SQLite and MySQL" if SERVER else "on SQLite; TEST_MYSQL_URL adds MySQL")


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
def empty_database_url(database_url, tmp_path):
    """A database of the same kind without a table, for one test."""
    with new_database(database_url.partition(":")[0], tmp_path) as url:
        yield url


@pytest.fixture
def make_app(database_url):
    """Makes the service, in an application of its own unless given another."""

    def make(**settings):
        close_connection()  # it may be of another database
        own = {"DATABASE_URL": database_url, "APPID": token_hex(8)}
        return create_app(own | settings)

    return make


@pytest.fixture
def app(make_app):
    """The service with its default settings; its context is pushed."""
    app = make_app()
    db.connect()
    with app.app_context():
        yield app


@pytest.fixture
def client(app):
    return app.test_client()


@pytest.fixture
def user(app):
    return sign_in(app)


@pytest.fixture
def administrator(app):
    return sign_in(app, administrator=True)


@pytest.fixture
def flask(app):
    """Runs a command of the app; returns the object that it prints."""
    return lambda *words: run(app, *words)


@pytest.fixture
def serve(tmp_path):
    """Starts the service by the Procfile's line; ends it with the test."""
    with ExitStack() as stack:

        def start(database_url, *, wait=True, cwd=ROOT, **settings):
            service = Program(tmp_path, DATABASE_URL=database_url, **settings)
            stack.callback(service.kill)
            service.start(cwd=cwd)
            if wait:
                service.wait_until_up()
            return service

        yield start
