// Answers each job with how late its task began: node latency.js <package> <url>
const [, , reference, connectionString] = process.argv;
const { run } = require(reference);

(async () => {
  const runner = await run({
    connectionString,
    taskList: {
      ping: async (payload) => {
        const late = process.hrtime.bigint() - BigInt(payload.sent);
        process.stdout.write(`late ${late}\n`);
      },
    },
  });
  process.stdout.write("ready\n");
  await runner.promise;
})();
