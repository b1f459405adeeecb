// Adds a job that Python will run.
import { makeWorkerUtils } from "graphile-worker";

import type { Order } from "./tasks.ts";

const order: Order = {
  order: 7,
  lines: [
    { product: "tea", amount: 2 },
    { product: "cup", amount: 1 },
  ],
};

const utils = await makeWorkerUtils({ connectionString: process.env.DATABASE_URL });
try {
  const job = await utils.addJob("price_order", order);
  console.log(`added job ${job.id}`);
} finally {
  await utils.release();
}
