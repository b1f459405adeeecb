// The statement by which the reference takes jobs, asked from the package itself:
// node node_claim.mjs <package> <schema> <forbidden flags as JSON> <jobs> [<jobs> …] prints one JSON
// object, jobs → statement.
import { pathToFileURL } from "node:url";

const [, , reference, schema, flags, ...sizes] = process.argv;
const { batchGetJobs } = await import(pathToFileURL(`${reference}/dist/sql/getJobs.js`));

async function claim(size) {
  const asked = [];
  const client = {
    query: async ({ text }) => {
      asked.push(text);
      return { rows: [{ id: 1, identifier: "task" }] };
    },
  };
  const options = {
    workerSchema: schema,
    escapedWorkerSchema: `"${schema}"`,
    resolvedPreset: { worker: { preparedStatements: true, useNodeTime: false } },
  };
  const withPgClient = { withRetries: (use) => use(client) };
  await batchGetJobs(options, withPgClient, { task: () => {} }, "pool", JSON.parse(flags), size);
  return asked.at(-1);
}

const claims = {};
for (const size of sizes) {
  claims[size] = await claim(Number(size));
}
process.stdout.write(JSON.stringify(claims));
