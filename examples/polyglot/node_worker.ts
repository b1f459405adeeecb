// A worker in TypeScript: it runs send_invoice, and leaves price_order to Python.
import { run, type Task } from "graphile-worker";

import type {} from "./tasks.ts"; // declares the payload of send_invoice

const sendInvoice: Task<"send_invoice"> = async ({ order, total, due }, { logger }) => {
  logger.info(`order ${order}: please pay ${total} EUR until ${due}`);
};

const runner = await run({
  connectionString: process.env.DATABASE_URL,
  taskList: { send_invoice: sendInvoice },
});
await runner.promise;
