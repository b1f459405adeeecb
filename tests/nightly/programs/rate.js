// Runs jobs of the task noop for some seconds: node rate.js <package> <url> <concurrency>
const [, , reference, connectionString, concurrency] = process.argv;
const { run } = require(reference);

(async () => {
  const runner = await run({
    connectionString,
    concurrency: Number(concurrency),
    taskList: { noop: async () => {} },
  });
  await runner.promise;
})();
