// Creates a profile, lists it, and asks for older ones, with a generated client.

import {
  AdministratorApi,
  Configuration,
  CreateProfileFromJSON,
  UserApi,
} from "./client/index";

export async function use(words: string[]) {
  const [basePath, accessToken, accountid, example] = words;
  const configuration = new Configuration({ basePath, accessToken });
  const createProfile = CreateProfileFromJSON(JSON.parse(example));
  const users = new UserApi(configuration);
  const made = await users.createProfile({ accountid, createProfile });
  const listings = new AdministratorApi(configuration);
  const [listed] = await listings.listProfiles({ accountid, limit: 1 });
  // The answer is null, and value() would want rows.
  const older = await listings.listProfilesRaw({ after: made.profileid });
  const rows = await older.raw.json();
  return [made.profileid, made.fullName, listed.profileid, rows];
}
