// The reference's crontab parser: node crontab.js <package> <parse|match>
// parse: each line of the input is a crontab as a JSON string; answers with a line of JSON for each.
// match: the input is {patterns, days} in JSON, days as 2024-02-29; answers with a line for each
// pattern: the SHA-256 of a byte 0 or 1 for every minute of these days.
const [, , reference, mode] = process.argv;
const { createHash } = require("node:crypto");
const { readFileSync } = require("node:fs");
const { parseCronItem, parseCrontab } = require(reference);

// Is there a number that JSON writes as null?
const isUnfinite = (value) =>
  typeof value === "number"
    ? !Number.isFinite(value)
    : value !== null && typeof value === "object" && Object.values(value).some(isUnfinite);

const described = ({ task, identifier, options, payload, match }) => ({
  task,
  identifier,
  options,
  payload,
  unfinite: isUnfinite(payload),
  ...match.parsedCronMatch,
});

const read = (crontab) => {
  try {
    return { ok: true, items: parseCrontab(crontab).map(described) };
  } catch (error) {
    return { ok: false, error: error.message };
  }
};

// As the package does it, which does not export it.
const digestOf = (moment) => ({
  min: moment.getUTCMinutes(),
  hour: moment.getUTCHours(),
  date: moment.getUTCDate(),
  month: moment.getUTCMonth() + 1,
  dow: moment.getUTCDay(),
});

const minutesOf = (day) => {
  const start = Date.parse(`${day}T00:00:00Z`);
  return Array.from({ length: 24 * 60 }, (_, n) => digestOf(new Date(start + n * 60_000)));
};

const hashOf = (pattern, digests) => {
  const { match } = parseCronItem({ task: "any", match: pattern });
  const answers = Buffer.from(digests.map((digest) => (match(digest) ? 1 : 0)));
  return createHash("sha256").update(answers).digest("hex");
};

const input = readFileSync(0, "utf8");
if (mode === "parse") {
  for (const line of input.split("\n").filter(Boolean)) {
    console.log(JSON.stringify(read(JSON.parse(line))));
  }
} else {
  const { patterns, days } = JSON.parse(input);
  const digests = days.flatMap(minutesOf);
  for (const pattern of patterns) {
    console.log(hashOf(pattern, digests));
  }
}
