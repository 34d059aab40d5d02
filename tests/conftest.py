"""The service on each database, over real connections, each test in an application of its own."""

import os
from contextlib import ExitStack
from secrets import token_hex

import pytest
import unclosed
from databases import Proxy, close_database, is_sqlite, mysql_database
from serving import Person, Served

from app import create_app

unclosed.watch()


@pytest.fixture(scope="session", autouse=True)
def every_connection_of_the_run_is_closed():
    yield
    unclosed.check_closed()


@pytest.fixture(autouse=True)
def every_connection_of_the_test_is_closed():
    yield
    close_database()
    unclosed.check_closed()


@pytest.fixture(scope="session", params=["sqlite", "mysql"])
def database_url(request, tmp_path_factory):
    """A database for the whole run."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/profiles.db"
    elif not os.environ.get("TEST_MYSQL_URL"):
        pytest.skip("set TEST_MYSQL_URL=mysql://root@127.0.0.1:3306 to test on that server too")
    else:
        with mysql_database() as url:
            yield url


@pytest.fixture
def make_empty_database(database_url, tmp_path):
    """Makes databases of the same kind without a table; returns the URL of each."""
    with ExitStack() as stack:

        def make():
            if is_sqlite(database_url):
                return f"sqlite:///{tmp_path}/{token_hex(4)}.db"
            return stack.enter_context(mysql_database())

        yield make


@pytest.fixture
def empty_database_url(make_empty_database):
    """A database of the same kind without a table, for one test."""
    return make_empty_database()


@pytest.fixture
def make_app(database_url):
    """Makes the service, in an application of its own unless given another."""

    def make(**settings):
        return create_app({"DATABASE_URL": database_url, "APPID": token_hex(8), **settings})

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
def serve(tmp_path):
    """Starts the service by the Procfile's line; ends it with the test."""
    services = []

    def start(database_url, *, wait=True, **settings):
        service = Served(tmp_path, database_url, **settings).start()
        services.append(service)
        if wait:
            service.wait_until_up()
        return service

    yield start
    for service in services:
        service.kill()


@pytest.fixture
def proxy():
    """A proxy that carries; gone with the test."""
    proxy = Proxy()
    proxy.come()
    yield proxy
    proxy.go()
