// A live worker of the reference: node fleet.js <package> <url> <schema> <concurrency> <batched|defaults>
// Says "ready" once it runs; stops at SIGTERM.
const [, , reference, connectionString, schema, concurrency, mode] = process.argv;
const { run } = require(reference);

const record = async (payload, { query, job }) => {
  if (payload.fail_first && job.attempts === 1) {
    throw new Error("not the first time");
  }
  await query("insert into ran (job, attempt, language) values ($1, $2, 'node')", [
    job.id,
    job.attempts,
  ]);
};

const worker = mode === "batched" ? { completeJobBatchDelay: 0 } : {};

(async () => {
  const runner = await run({
    connectionString,
    schema,
    concurrency: Number(concurrency),
    taskList: { both: record, node_only: record },
    preset: { worker },
  });
  console.log("ready");
  await runner.promise;
})();
