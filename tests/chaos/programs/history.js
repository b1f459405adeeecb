// A worker of the reference that notes when bodies begin and end:
// node history.js <package> <url> <schema> <concurrency> <batched|defaults> <journal>
// Its name is PGAPPNAME. Says "ready" once it runs; stops at SIGTERM.
const fs = require("fs");

const [, , reference, connectionString, schema, concurrency, mode, journal] = process.argv;
const { run } = require(reference);

const file = fs.openSync(journal, "a");
const note = (step, job) => {
  const body = {
    step,
    job_id: Number(job.id),
    attempt: job.attempts,
    pool: job.locked_by,
    process: process.env.PGAPPNAME,
    at: Date.now() / 1000,
  };
  fs.writeSync(file, JSON.stringify(["Body", body]) + "\n");
};

const work = async (payload, { job }) => {
  note("start", job);
  await new Promise((resolve) => setTimeout(resolve, payload.ms ?? (payload.seconds ?? 0) * 1000));
  note("end", job);
};

// Fails so many times.
const stumble = async (payload, { job }) => {
  note("start", job);
  note("end", job);
  if (job.attempts <= (payload.times ?? 1)) throw new Error(`attempt ${job.attempts} fails`);
};

const worker = mode === "batched" ? { completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {};

(async () => {
  const runner = await run({
    connectionString,
    schema,
    concurrency: Number(concurrency),
    taskList: { work, work_in_thread: work, stumble },
    preset: { worker },
  });
  console.log("ready");
  await runner.promise;
})();
