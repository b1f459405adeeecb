// The reference runs what is ready, once: node batch.js <package> <url> <schema> <well|odd>
// Of a batch it rejects the odd numbers, unless all is to go well.
const [, , reference, connectionString, schema, how] = process.argv;
const { runOnce } = require(reference);

const outcome = async (number) => {
  if (how === "odd" && number % 2) {
    throw new Error(`${number} is odd`);
  }
};

runOnce({
  connectionString,
  schema,
  taskList: { numbers: async (items) => items.map(outcome) },
});
