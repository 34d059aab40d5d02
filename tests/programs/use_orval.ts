// Creates a profile, lists it, and asks for older ones, with a generated client.

import { createProfile, listProfiles } from "./client";

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
  return [profileid, fullName, listed.data?.[0].profileid, older.data];
}
