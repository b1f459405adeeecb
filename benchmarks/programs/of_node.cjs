// The reference on Node: node of_node.cjs <package> <batched|direct|add|ping>
// `batched` is its local queue and its batched completion, both set by its preset.
const [, , reference, mode] = process.argv;
const { run, makeWorkerUtils } = require(reference);

const connectionString = process.env.BENCH_DSN;
const jobs = Number(process.env.BENCH_JOBS);
const concurrency = Number(process.env.BENCH_CONCURRENCY);
const batch = Number(process.env.BENCH_BATCH);

const say = (facts) => process.stdout.write(`${JSON.stringify(facts)}\n`);
const seconds = () => Number(process.hrtime.bigint()) / 1e9;

function counter() {
  let ran = 0;
  return () => {
    ran += 1;
    if (ran === 1) {
      const used = process.cpuUsage();
      say({ first: Number(process.hrtime.bigint()), cpu: (used.user + used.system) / 1e6 });
    } else if (ran === jobs) {
      say({ last: Number(process.hrtime.bigint()), largest_fetch: largestFetch });
    }
  };
}

// What its local queue says of itself: the proof that the preset is heard.
let largestFetch = 0;

async function work() {
  const count = counter();
  const batched = { localQueue: { size: batch }, completeJobBatchDelay: 0 };
  const runner = await run({
    connectionString,
    concurrency,
    taskList: {
      noop: async () => count(),
      ping: async (payload) => {
        say({ late: Number(process.hrtime.bigint() - BigInt(payload.sent)) });
      },
    },
    preset: { worker: mode === "batched" ? batched : {} },
  });
  runner.events.on("localQueue:getJobs:complete", ({ jobs: fetched }) => {
    largestFetch = Math.max(largestFetch, fetched.length);
  });
  await runner.promise;
}

async function add() {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.addJob("noop", { id: 0 });
  const began = seconds();
  for (let id = 0; id < batch; id += 1) {
    await utils.addJob("noop", { id });
  }
  const between = seconds();
  for (let first = 0; first < jobs; first += batch) {
    const specs = Array.from({ length: batch }, (_, id) => ({
      identifier: "noop",
      payload: { id: first + id },
    }));
    await utils.addJobs(specs);
  }
  const ended = seconds();
  say({ one_by_one: batch / (between - began), in_batches: jobs / (ended - between) });
  await utils.release();
}

// Single jobs with pauses, as ours_pinging.py adds them.
async function ping() {
  const utils = await makeWorkerUtils({ connectionString });
  for (let id = 0; id < jobs; id += 1) {
    await utils.addJob("ping", { sent: Number(process.hrtime.bigint()) });
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await utils.release();
}

({ add, ping })[mode]?.() ?? work();
