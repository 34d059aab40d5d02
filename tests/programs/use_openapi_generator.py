"""Creates a profile, lists it, and asks for older ones, with a generated client."""

import json
import sys

from client import AdministratorApi, ApiClient, Configuration, CreateProfile, UserApi

host, token, accountid, example = sys.argv[1:]
with ApiClient(Configuration(host=host, access_token=token)) as client:
    body = CreateProfile.from_json(example)
    made = UserApi(client).create_profile(accountid, body)
    listings = AdministratorApi(client)
    (listed,) = listings.list_profiles(accountid=accountid, limit=1)
    older = listings.list_profiles(after=made.profileid)
print(json.dumps([made.profileid, made.full_name, listed.profileid, older]))
