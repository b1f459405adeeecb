// A worker of the reference: node fleet.js <package> <install|add|run|once> <options as JSON>
// Its options and tasks are those of fleet.py and of ../rust/worker.rs, which run the same tests in
// their languages. `run` prints "ready" and stops at SIGTERM, `once` ends when no job is ready.
const [, , reference, command, given] = process.argv;
const { makeWorkerUtils, run, runMigrations, runOnce } = require(reference);

const options = JSON.parse(given);
const connectionString = options.url;
const { schema, language = "node" } = options;

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const record = async (payload, { query, job }) => {
  const wishes = payload ?? {};
  if (wishes.fail_first && job.attempts === 1) {
    throw new Error("not the first time");
  }
  if (wishes.fail_in?.includes(language)) {
    throw new Error(`not in ${language}`);
  }
  if (wishes.hang_in?.includes(language)) {
    // Until the test kills this process.
    await wait(24 * 3600 * 1000);
  }
  await wait(wishes.sleep_ms ?? 0);
  await query("insert into ran (job, attempt, language, payload) values ($1, $2, $3, $4)", [
    job.id,
    job.attempts,
    language,
    JSON.stringify(payload),
  ]);
};

const numbers = async (items, helpers) => {
  await record(items, helpers);
  const outcome = async (number) => {
    if (options.reject_odd && number % 2) {
      throw new Error(`${number} is odd`);
    }
  };
  return items.map(outcome);
};

const tasks = { both: record, node_only: record, work: record, tick: record, echo: record, numbers };
const wanted = options.tasks ?? Object.keys(tasks);

const settings = {
  connectionString,
  schema,
  concurrency: options.concurrency ?? 1,
  taskList: Object.fromEntries(wanted.map((name) => [name, tasks[name]])),
  forbiddenFlags: options.forbidden_flags ?? [],
  crontab: options.crontab,
  preset: { worker: options.preset ?? {} },
};

const commands = {
  install: () => runMigrations({ connectionString, schema }),
  add: async () => {
    const utils = await makeWorkerUtils({ connectionString, schema });
    for (const job of options.jobs) {
      await utils.addJob(job.task, job.payload, {
        queueName: job.queue_name,
        runAt: job.run_at && new Date(job.run_at),
        maxAttempts: job.max_attempts,
        jobKey: job.job_key,
        jobKeyMode: job.job_key_mode,
        priority: job.priority,
        flags: job.flags,
      });
    }
    await utils.release();
  },
  once: () => runOnce(settings),
  run: async () => {
    const runner = await run(settings);
    console.log("ready");
    await runner.promise;
  },
};

commands[command]();
