"""Many first starts at once make the tables once."""

import pytest
from databases import SCHEMA, first_starts, schema

pytestmark = pytest.mark.long


def test_first_starts_at_once_make_every_table_once(make_empty_database):
    urls = [make_empty_database() for _ in range(20)]
    first_starts([[url] * 8 for url in urls])
    assert [schema(url) for url in urls] == [SCHEMA] * 20
