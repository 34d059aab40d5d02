// Creates a profile, lists it, asks for older ones, and signs another account in, with
// a generated client.

import {
  createAccount,
  createProfile,
  createSession,
  listProfiles,
} from "./client";

export async function use(words: string[]) {
  const [base, token, accountid, example] = words;
  const send = globalThis.fetch;
  globalThis.fetch = (path, options) => send(base + path, options);
  const options = { headers: { Authorization: `Bearer ${token}` } };
  const made = await createProfile(JSON.parse(example), { accountid }, options);
  if (made.status !== 201) throw made;
  const { profileid, fullName } = made.data;
  const listed = await listProfiles({ accountid, limit: 1 }, options);
  const older = await listProfiles({ after: profileid }, options);
  if (listed.status !== 200 || older.status !== 200) throw [listed, older];
  const account = await createAccount(options);
  if (account.status !== 201) throw account;
  const target = { accountid: account.data.accountid };
  const session = await createSession(target, { duration: 60 }, options);
  if (session.status !== 201) throw session;
  const [first] = listed.data ?? [];
  return [profileid, fullName, first.profileid, older.data, session.data.token];
}
