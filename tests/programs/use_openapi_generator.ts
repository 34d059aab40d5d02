// Creates a profile, lists it, asks for older ones, and signs another account in, with
// a generated client.

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
  const administrator = new AdministratorApi(configuration);
  const [listed] = await administrator.listProfiles({ accountid, limit: 1 });
  // The answer is null, and value() would want rows.
  const older = await administrator.listProfilesRaw({ after: made.profileid });
  const rows = await older.raw.json();
  const account = await administrator.createAccount();
  const session = await administrator.createSession({
    accountid: account.accountid,
    createSession: { duration: 60 },
  });
  const { profileid, fullName } = made;
  return [profileid, fullName, listed.profileid, rows, session.token];
}
